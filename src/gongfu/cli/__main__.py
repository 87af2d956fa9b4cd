from gongfu.cli.main import main

main()
