module vestibule/tests/path/ech

go 1.25
