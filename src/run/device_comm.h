// The transport between the GPUs of ranks: its choice, and its operations for `lnbench comm`.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/comm_operations.h"
#include "comm/communicator.h"

namespace longnet {

// Returns the transport that "auto" resolves to for all ranks of a run, so that all points use the
// same one. Other names are returned unchanged, and so is "auto" where some rank has no GPU.
// Collective.
std::string transport_of_run(const std::string& name, Communicator& comm);

// Returns the operations that `lnbench comm` times, on each rank's device. `transport`: a name, or
// "gpu" for the transport that "auto" resolves to.
// Throws on every rank when it does not fit, or some device lacks the memory. Collective.
std::unique_ptr<CommOperations> operations_on_device(const std::string& transport,
                                                     Communicator& comm, int64_t max_bytes);

// Returns the GPU of each rank of `comm`: equal texts are the same GPU. Collective.
std::vector<std::string> devices_of_ranks(Communicator& comm);

}  // namespace longnet
