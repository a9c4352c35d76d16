// archive writes a docker archive with one image of one static program, without a container engine:
//
//	archive OUT.tar PROGRAM NAME...
//
// The program becomes /<its file name> and the entry point; the image has a /tmp besides. The layer is not compressed:
// nothing to compress here, nothing to unpack in each of three nodes.
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

func main() {
	if len(os.Args) < 4 {
		fail(fmt.Errorf("usage: archive OUT.tar PROGRAM NAME"))
	}
	out, program, names := os.Args[1], os.Args[2], os.Args[3:]
	text, err := os.ReadFile(program)
	fail(err)
	entry := filepath.Base(program)
	layer := pack(
		file{name: "tmp/", mode: 0o1777},
		file{name: entry, mode: 0o755, content: text},
	)
	config := encode(map[string]any{
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Entrypoint": []string{"/" + entry}, "WorkingDir": "/"},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sum(layer)}},
	})
	configName := sum(config) + ".json"
	manifest := encode([]map[string]any{{"Config": configName, "RepoTags": names, "Layers": []string{"layer.tar"}}})
	archive := pack(
		file{name: configName, mode: 0o644, content: config},
		file{name: "layer.tar", mode: 0o644, content: layer},
		file{name: "manifest.json", mode: 0o644, content: manifest},
	)
	fail(os.WriteFile(out, archive, 0o644))
}

// file is an entry of an archive; one whose name ends in a slash is a folder.
type file struct {
	name    string
	mode    int64
	content []byte
}

func pack(files ...file) []byte {
	var archive bytes.Buffer
	writer := tar.NewWriter(&archive)
	for _, f := range files {
		header := tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), Typeflag: tar.TypeReg}
		if f.name[len(f.name)-1] == '/' {
			header.Typeflag = tar.TypeDir
		}
		fail(writer.WriteHeader(&header))
		_, err := writer.Write(f.content)
		fail(err)
	}
	fail(writer.Close())
	return archive.Bytes()
}

func encode(value any) []byte {
	text, err := json.Marshal(value)
	fail(err)
	return text
}

func sum(data []byte) string {
	digest := sha256.Sum256(data)
	return hex.EncodeToString(digest[:])
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "archive:", err)
		os.Exit(1)
	}
}
