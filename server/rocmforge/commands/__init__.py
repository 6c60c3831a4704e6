"""One module per subcommand of `rocmforge`; each is imported only when it is asked for."""
