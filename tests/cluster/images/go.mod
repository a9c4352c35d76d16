module vestibule/tests/cluster/images

go 1.25
