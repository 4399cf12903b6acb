import sys

from cosnorm.benchmarks.sparse import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
