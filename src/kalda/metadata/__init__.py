"""Cluster metadata, the same on every node: immutable images, built from the records of `__cluster_metadata`.

A delta replays records over an image. Applying it gives the next image, which shares with its predecessor all parts
that the records did not change. The loader does this with the records that the quorum commits, and calls its
publishers with each image.

This floor depends on no quorum and no disk layout except that of a fresh node, and not on what publishers do. It makes
no decisions: a record in the log is a fact. The controller decides which records are written.

- `features`: the levels of metadata.version and of the other features, dependencies, defaults; rules of an update
- `finalized`: feature levels as an image
- `cluster`: registrations of brokers and controllers
- `topics`: topics and their partitions, and what a delta means for one broker
- `configs`, `client_quotas`, `producer_ids`, `acls`, `scram`, `delegation_tokens`: a domain each
- `image_records`: turning images back into records, at a metadata.version
- `image`: all domains together, and the delta that changes them
- `publisher`: the interface of publishers, the manifest of an image, those of committed batches and snapshots;
  the publishers that start a snapshot, and that call for a new registration of this broker
- `loader`: committed batches and snapshots to images; metadata transactions; publishers
- `meta_properties`: the identity of log directories, and checks that they belong together
- `formatter`: fresh storage for a node, and the first records of a cluster
"""
