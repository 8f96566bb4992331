// CommOperations between GPUs, on a DeviceTransport.
#pragma once
#include "comm/comm_operations.h"
#include "comm/cuda/device_transport.h"

namespace longnet {

// Buffers on the calling thread's device, which is its rank's (device_of_rank). A run's seconds are
// the device's, from before the first operation to after the last; operations follow each other on
// one stream, as they do in nccl-tests. Collective. Throws DeviceOutOfMemory.
std::unique_ptr<CommOperations> make_device_operations(std::unique_ptr<DeviceTransport> transport,
                                                       int64_t max_bytes);

}  // namespace longnet
