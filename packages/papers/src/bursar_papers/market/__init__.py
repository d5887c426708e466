"""Every protocol and pricing rule of the market, studied by simulation on virtual time."""
