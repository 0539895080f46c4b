#!/usr/bin/env bash
# debian.sh DIRECTORY: downloads Debian's packages and unpacks them there, unless it did before.
set -euo pipefail
cd "$(dirname "$0")"
list=$(grep -v '^#' packages | paste -sd,)
if [ "$(cat "$1.packages" 2>/dev/null)" = "$list" ]; then exit; fi
echo "Downloading the Debian packages of a node" >&2
rm -rf --one-file-system "$1"
sources=/etc/apt/sources.list.d/debian.sources
mmdebstrap --quiet --variant=minbase --mode=root --aptopt='Acquire::Languages "none"' --dpkgopt='path-exclude=/usr/share/man/*' \
	--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' --include="$list" \
	bookworm "$1" $([ ! -f $sources ] || echo $sources)
echo "$list" >"$1.packages"
