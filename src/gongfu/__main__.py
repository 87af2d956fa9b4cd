"""`python -m gongfu`: the command without its script."""

from gongfu.cli.main import main

main()
