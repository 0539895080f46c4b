// Command links checks the links between the Markdown files of this repository, and those from YAML files to them: that the file or
// directory exists, and the heading. It does not follow links to other sites, so that the result does not depend on them.
//
//	go run ./hack/verify/links [directory]
package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pkg/errors"
)

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	broken, err := check(os.DirFS(root))
	if err != nil {
		fmt.Fprintf(os.Stderr, "links: %v\n", err)
		os.Exit(1)
	}
	for _, each := range broken {
		fmt.Fprintln(os.Stderr, each)
	}
	if len(broken) > 0 {
		os.Exit(1)
	}
}

// check returns the invalid links, as "file:line: why".
func check(files fs.FS) ([]string, error) {
	documents, err := read(files)
	if err != nil {
		return nil, err
	}
	var broken []string
	for _, name := range sortedNames(documents) {
		for _, link := range documents[name].links {
			if why := resolve(files, documents, name, link.target); why != "" {
				broken = append(broken, fmt.Sprintf("%s:%d: %s: %s", name, link.line, link.target, why))
			}
		}
	}
	return broken, nil
}

// read parses all Markdown and YAML files, by their slash-separated paths.
func read(files fs.FS) (map[string]document, error) {
	documents := map[string]document{}
	parsers := map[string]func(string) document{".md": parse, ".yaml": parseYAML}
	err := fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && isForeign(entry.Name()):
			return fs.SkipDir
		case entry.IsDir() || parsers[filepath.Ext(name)] == nil:
			return nil
		}
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		documents[name] = parsers[filepath.Ext(name)](string(content))
		return nil
	})
	return documents, errors.Wrap(err, "reading Markdown and YAML files")
}

// isForeign reports whether a directory is hidden or build output.
func isForeign(directory string) bool {
	return directory != "." && strings.HasPrefix(directory, ".") || directory == "bin" || directory == "out"
}
