// An emulated CUDA device for tests: core/cuda/device.h on the CPU. Streams are lists of closures,
// memory is the host's.
//
// Work on a stream is done as late as it may be: when something waits for it. A stream whose event
// was not waited for stays behind for ever, so a missing dependency between streams gives NaN or
// old values, and a circular one throws. Times are those that the host needs for the work, laid
// side by side as streams and events allow.
//
// Programs that link this have LONGNET_EMULATED_GPUS (1) devices of LONGNET_EMULATED_GPU_BYTES (4
// GiB) each.
#pragma once
#include <functional>
#include <stdexcept>
#include <utility>

#include "kernels/cuda/device_kernel.h"

namespace longnet {

// Enqueues `kernel`, a function on the host, as a kernel launch on `stream`.
void emulate_launch(CUstream_st* stream, std::function<void()> kernel);

// The number of devices from now on.
void emulate_devices(int count);

// Returns the bounds [begin, end) of the buffer that contains `at`; empty when there is none.
std::pair<const std::byte*, const std::byte*> emulated_buffer(const void* at);

// Work that needs something of another rank may throw this before it does anything: the caller that
// waits tries again when another thread has enqueued more, and gives up when none does for long.
struct NotYet : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The result does all work on `stream` so far, and what that waits for. For use in work.
std::function<void()> emulate_all_before(CUstream_st* stream);

// The CPU's attention kernel behind the device's interface, for bf16. `merges`: takes
// DeviceAttendOptions::merge.
std::unique_ptr<DeviceKernel> make_emulated_kernel(bool merges);

// ---- NCCL among threads on emulated devices, in the place of comm/nccl/nccl_functions.cpp.
//
// It is as strict as the library may be:
//   - a group of calls is one kernel: it begins when all before it on its stream is done, and a
//     message moves when the kernels of both its ends have begun;
//   - calls of a communicator match in the order in which each rank made them, or throw;
//   - ncclGroupEnd waits on the host until the peers of every first exchange have connected;
//   - ncclCommInitRank waits on the host until all ranks have called, each from its own device.
// A call that waits for itself throws; one whose peer does not arrive throws after 20 s.
struct NcclUse {
  int64_t kernels = 0;             // groups, and calls outside of groups
  int64_t calls = 0;               // sends, receives, gathers, broadcasts
  int64_t registered_calls = 0;    // calls with all their memory registered
  int64_t registered_buffers = 0;  // now
};
// Returns the counts over all ranks since the program began.
NcclUse nccl_use();

// Call number `call` (from 0) of rank `rank` on any communicator fails; -1: none does any more.
void emulate_nccl_failure(int rank, int64_t call);

}  // namespace longnet
