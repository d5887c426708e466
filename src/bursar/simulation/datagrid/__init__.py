"""
Simulates a data grid (Cavalieri, Monforte and Scibilia 2003, section 2.3).

Jobs go from user interfaces to the resource broker, which asks the information index and the
replica catalogue; from there to the job submission service, where they wait for their files;
and to a computing element. The broker and the index are those that serve live. All of it runs
on virtual time, a callback for each thing that happens.
"""
