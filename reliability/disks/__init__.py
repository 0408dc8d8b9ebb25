"""Disks that are full, fail or lie, and file systems that lack what others have.

`python -m reliability.disks` tries all of it, on real file systems that it mounts for that (as root), and writes
`results/disks.json`. What cannot be mounted here is told as not tried.
"""
