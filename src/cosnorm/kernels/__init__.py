"""The steps of a layer, twice under the same names: `plain` in torch, the others in Triton."""
