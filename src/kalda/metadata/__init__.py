"""Cluster metadata, the same on every node: immutable images, built from the records of `__cluster_metadata`.

A delta replays records over an image. Applying it gives the next image, which shares with its predecessor all parts
that the records did not change. The loader does this with the records that the quorum commits, and calls its
publishers with each image.

This floor depends on no quorum and no disk layout except that of a fresh node, and not on what publishers do. It makes
no decisions: a record in the log is a fact. The controller decides which records are written.

- `metadata_version`: the levels of metadata.version, and what each one allows
- `features`: the other features, their levels, dependencies and defaults by release; rules of an update
- `finalized`: feature levels as an image
- `cluster`: registrations of brokers and controllers
- `partition`: one partition's registration, and how a change record merges into it
- `topics`: topics, and what a delta means for one broker
- `configs`, `client_quotas`, `producer_ids`, `acls`, `scram`, `delegation_tokens`: a domain each
- `image_records`: turning images back into records, at a metadata.version
- `image`, `delta`: all domains together
- `publisher`: the interface of publishers, the manifest of an image, and those of committed batches and snapshots
- `loader`: committed batches and snapshots to images; metadata transactions; publishers
- `snapshot_generator`: the publisher that starts a snapshot when one is due
- `registration_tracker`: the publisher that calls for a new registration of this broker when its old one lacks data
- `bootstrap`: the first records of a cluster
- `meta_properties`: the identity of log directories, and checks that they belong together
- `scram_arguments`: SCRAM credentials as given on a command line
- `formatter`: fresh storage for a node
"""
