package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"

	"github.com/pkg/errors"
)

// pluginName is the name of the kubectl plugin's program.
const pluginName = "kubectl-node_maintenance"

// platform is an operating system and an architecture.
type platform struct{ os, architecture string }

// pluginPlatforms are the platforms of the kubectl plugin.
var pluginPlatforms = []platform{
	{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}, {"windows", "arm64"},
}

// program returns the name of the plugin's program.
func (p platform) program() string {
	if p.os == "windows" {
		return pluginName + ".exe"
	}
	return pluginName
}

// base returns the name of the platform's files, without the end that says what a file is.
func (p platform) base() string { return pluginName + "-" + p.os + "-" + p.architecture }

// archive returns the name of the archive: a zip file for Windows, and a compressed tar file elsewhere.
func (p platform) archive() string {
	if p.os == "windows" {
		return p.base() + ".zip"
	}
	return p.base() + ".tar.gz"
}

// writePlugin builds the kubectl plugin, and writes an archive and a bill of materials for each platform, and the manifest for Krew.
func (r *release) writePlugin() error {
	dir, err := os.MkdirTemp(r.out, ".plugin-")
	if err != nil {
		return errors.Wrap(err, "creating a directory for the plugin")
	}
	defer func() { _ = os.RemoveAll(dir) }()
	for _, p := range pluginPlatforms {
		binary := filepath.Join(dir, p.base())
		if err := r.build(pluginName, p, binary); err != nil {
			return err
		}
		if err := r.writeSBOM(binary, p.base()); err != nil {
			return err
		}
		content, err := os.ReadFile(binary)
		if err != nil {
			return errors.Wrap(err, "reading the plugin")
		}
		if err := r.archivePlugin(p, content); err != nil {
			return err
		}
	}
	return r.writeKrewManifest()
}

// archivePlugin writes the archive of a platform: the program and the license.
func (r *release) archivePlugin(p platform, program []byte) error {
	license, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return errors.Wrap(err, "reading the license")
	}
	files := []file{{p.program(), 0o755, program}, {"LICENSE", 0o644, license}}
	pack := r.tarball
	if p.os == "windows" {
		pack = r.zip
	}
	content, err := pack(files)
	if err != nil {
		return errors.Wrapf(err, "writing %s", p.archive())
	}
	return r.write(p.archive(), content)
}

// file is a file of an archive.
type file struct {
	name    string
	mode    int64
	content []byte
}

func (r *release) tar(files []file) ([]byte, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range files {
		if err := w.WriteHeader(&tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), ModTime: r.created, Format: tar.FormatPAX}); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return archive.Bytes(), err
}

func (r *release) tarball(files []file) ([]byte, error) {
	content, err := r.tar(files)
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	compressed := gzip.NewWriter(&archive)
	if _, err := compressed.Write(content); err != nil {
		return nil, err
	}
	err = compressed.Close()
	return archive.Bytes(), err
}

func (r *release) zip(files []file) ([]byte, error) {
	var archive bytes.Buffer
	w := zip.NewWriter(&archive)
	for _, f := range files {
		header := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: r.created}
		header.SetMode(os.FileMode(f.mode)) //nolint:gosec // a mode
		entry, err := w.CreateHeader(header)
		if err != nil {
			return nil, err
		}
		if _, err := entry.Write(f.content); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return archive.Bytes(), err
}
