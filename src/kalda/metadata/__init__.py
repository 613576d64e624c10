"""Cluster metadata as every node sees it: immutable images, grown from the records of `__cluster_metadata`.

A delta folds records over an image; applying it gives the next image, which shares with its predecessor whatever
the records did not touch. The loader does this for what the quorum commits, and tells its publishers.

This floor knows no quorum, no disk layout but that of a fresh node, and nothing of what a publisher does. It decides
nothing: a record in the log is a fact. What may be written there is the controller's business.

- `metadata_version`: the levels of metadata.version, and what each one allows
- `features`: the other features, their levels, dependencies and defaults by release; rules of an update
- `finalized`: feature levels as an image
- `cluster`: registrations of brokers and controllers
- `partition`: one partition's registration, and how a change record merges into it
- `topics`: topics, and what a delta means for one broker
- `configs`, `client_quotas`, `producer_ids`, `acls`, `scram`, `delegation_tokens`: a domain each
- `writing`: turning images back into records, at a metadata.version
- `image`, `delta`: all domains together
- `manifest`: what was loaded, and the publisher's interface
- `loader`: committed batches and snapshots to images; metadata transactions; publishers
- `snapshot_generator`: the publisher that decides when a snapshot is due
- `registration_tracker`: the publisher that notices when this broker must register anew
- `bootstrap`: the first records of a cluster
- `meta_properties`: the identity of log directories, and whether they agree
- `scram_arguments`: SCRAM credentials as given on a command line
- `formatter`: fresh storage for a node
"""
