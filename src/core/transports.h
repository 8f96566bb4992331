// The transports between GPUs by name: configs (io) and options take these words, comm makes the
// transports. Between hosts the launcher chooses (comm/host_transport.h).
#pragma once
#include <string>
#include <vector>

#include "core/enum_names.h"

namespace longnet {

// auto: nccl where every rank has a GPU of its own, cuda_ipc where all share a machine, else
// mpi_host.
enum class DeviceTransportKind { kAuto, kNccl, kNcclRegistered, kCudaIpc, kMpiHost };
constexpr auto texts_of(DeviceTransportKind) {
  return texts("auto", "nccl", "nccl_registered", "cuda_ipc", "mpi_host");
}
// One line each for `lnbench list`.
constexpr std::string_view about(DeviceTransportKind kind) {
  constexpr auto kAbout =
      texts("the launcher's ranks, else threads; between GPUs the fastest that works",
            "NCCL, one GPU per rank", "NCCL on registered buffers, which it may use in place",
            "copies between ranks of one machine, which may share a GPU",
            "through page-locked host memory and MPI, between any GPUs");
  return kAbout[size_t(kind)];
}
// True of NCCL's: they refuse ranks that share a GPU.
constexpr bool needs_gpu_per_rank(std::string_view name) {
  return name == to_string(DeviceTransportKind::kNccl) ||
         name == to_string(DeviceTransportKind::kNcclRegistered);
}
// All but auto, which on hosts is one of theirs.
inline std::vector<std::string> device_transport_names() {
  std::vector<std::string> names = enum_names<DeviceTransportKind>();
  names.erase(names.begin());
  return names;
}

}  // namespace longnet
