from cosnorm.cli import main

main()
