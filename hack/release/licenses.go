package main

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pkg/errors"
)

// licensePhrases identify licenses by their text. The first match decides. A dependency with another license fails the release here.
var licensePhrases = []struct{ spdx, phrase string }{
	{"Apache-2.0", "Apache License Version 2.0"},
	{"Apache-2.0", "Licensed under the Apache License, Version 2.0"},
	{"MPL-2.0", "Mozilla Public License"},
	{"BSD-3-Clause", "Neither the name of"},
	{"BSD-3-Clause", "name of the author may not be used to endorse"},
	{"BSD-3-Clause", "names of its contributors may be used to endorse"},
	{"BSD-2-Clause", "Redistributions in binary form must reproduce"},
	{"ISC", "Permission to use, copy, modify, and/or distribute this software for any purpose"},
	{"MIT", "Permission is hereby granted, free of charge"},
}

// moduleLicenses returns the SPDX identifiers of the licenses of all modules that contribute packages to the programs, by module.
func (r *release) moduleLicenses() (map[string]string, error) {
	commands := []string{"./cmd/" + pluginName}
	for _, p := range programs {
		commands = append(commands, "./cmd/"+p.name)
	}
	licenses := map[string]string{}
	for _, p := range pluginPlatforms {
		if err := r.addLicenses(licenses, p, commands); err != nil {
			return nil, err
		}
		commands = commands[:1] // the others are built for Linux, which is the first
	}
	return licenses, nil
}

// addLicenses adds the licenses of the modules that contribute packages to commands on a platform.
func (r *release) addLicenses(licenses map[string]string, p platform, commands []string) error {
	command := exec.Command("go", append([]string{"list", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Dir}}{{end}}"}, commands...)...)
	command.Dir = r.root
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.os, "GOARCH="+p.architecture, "GOFLAGS=-buildvcs=false", "GOWORK=off")
	output, err := command.Output()
	if err != nil {
		return errors.Wrap(err, "listing the modules")
	}
	for line := range strings.Lines(string(output)) {
		module, dir, _ := strings.Cut(strings.TrimSpace(line), " ")
		if _, known := licenses[module]; known || module == "" {
			continue
		}
		if licenses[module], err = licenseIn(dir); err != nil {
			return errors.Wrapf(err, "finding the license of %s", module)
		}
	}
	return nil
}

func licenseIn(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var found []string
	for _, entry := range entries {
		name := strings.ToUpper(entry.Name())
		if entry.IsDir() || !strings.HasPrefix(name, "LICENSE") && !strings.HasPrefix(name, "LICENCE") && !strings.HasPrefix(name, "COPYING") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		if err != nil {
			return "", err
		}
		text := strings.Join(strings.Fields(string(content)), " ")
		for _, license := range licensePhrases {
			if strings.Contains(text, license.phrase) {
				found = append(found, license.spdx)
				break
			}
		}
	}
	slices.Sort(found)
	if found = slices.Compact(found); len(found) == 0 {
		return "", errors.Errorf("%s has no known license", dir)
	}
	return strings.Join(found, " AND "), nil
}

// writeLicenses lists the licenses of all dependencies.
func (r *release) writeLicenses() (err error) {
	if r.licenses, err = r.moduleLicenses(); err != nil {
		return err
	}
	var list strings.Builder
	for _, module := range slices.Sorted(maps.Keys(r.licenses)) {
		fmt.Fprintf(&list, "%s\t%s\n", module, r.licenses[module])
	}
	return r.write("licenses.txt", []byte(list.String()))
}
