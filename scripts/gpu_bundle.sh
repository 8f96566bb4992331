#!/usr/bin/env bash
# Prepares what a GPU machine without network may lack: lnbench, gpu_check and gpu_kernels_benchmark,
# built here without MPI, with the libraries that they need, in build/gpu_deps
# (ignored by git). Carry that folder with the sources; gpu_validate.sh takes its programs where they
# start, and then builds nothing.
#
#   scripts/gpu_bundle.sh [CUDA_ARCH]      (default: 90-real, an H100 or H200; 80-real: an A100)
#
# The machine needs a C library at least as new as this one's.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
no_options 1 "$@"
arch=${1:-90-real}
deps=build/gpu_deps
cmake -S . -B build/bundle -G Ninja -DCMAKE_BUILD_TYPE=Release -DLONGNET_MPI=OFF \
  -DLONGNET_BENCHMARKS=OFF -DLONGNET_CUDA=ON \
  -DCMAKE_CUDA_ARCHITECTURES="$arch" >build/bundle.log
programs=(lnbench gpu_check gpu_kernels_benchmark)
cmake --build build/bundle --target "${programs[@]}"
rm -rf "$deps"
mkdir -p "$deps/bin" "$deps/lib"
for program in "${programs[@]}"; do
  cp "build/bundle/bin/$program" "$deps/bin/"
  strip "$deps/bin/$program"
done
echo "programs: from $(git describe --always --dirty) for $arch, by $(nvcc --version | tail -1)" >"$deps/built.txt"
# All but the C library's own parts, which belong to the machine.
ldd "${programs[@]/#/build/bundle/bin/}" | awk '$2 == "=>" { print $3 }' |
  grep -vE '/(libc|libm|libdl|librt|libpthread|ld-linux[^/]*)\.so' | xargs -I{} cp -L {} "$deps/lib/"
LD_LIBRARY_PATH="$deps/lib" "$deps/bin/lnbench" --version
say "carry $deps ($(du -sh "$deps" | cut -f1)) along with the sources"
