"""
Machines of a cloud as a site: bought one for each allocation, found by their tags, and ended.

``machine_choice`` and ``purchases`` decide, without a clock or input; ``provider`` is the contract
with a cloud, which ``libcloud_provider`` carries out; ``cloud_site`` joins them to the protocol of
sites; ``reaping`` finds machines that were left.
"""
