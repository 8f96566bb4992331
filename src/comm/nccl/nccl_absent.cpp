// Builds without NCCL's headers.
#include "comm/cuda/device_transport.h"
#include "core/check.h"

namespace longnet {

std::string why_nccl_absent() { return "this build has no NCCL: nccl.h was not found"; }
std::string describe_nccl() { return why_nccl_absent(); }
std::unique_ptr<DeviceTransport> make_nccl_transport(DeviceTransportKind, Communicator&) {
  throw UsageError("transport nccl: " + why_nccl_absent());
}

}  // namespace longnet
