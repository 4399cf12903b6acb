import sys

from cosnorm.benchmarks.training import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
