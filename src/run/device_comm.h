// What moves bytes between the GPUs of ranks, chosen and alone.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "comm/comm_operations.h"
#include "comm/communicator.h"

namespace longnet {

// What transport "auto" is for all ranks of a run, so that its points differ in nothing else; other
// names stay, and "auto" does where some rank has no GPU. Collective.
std::string transport_of_run(const std::string& name, Communicator& comm);

// Of `lnbench comm`, on each rank's device. `transport`: a name, or "gpu" for what "auto" is.
// Throws on every rank when it does not fit, or some device lacks the memory. Collective.
std::unique_ptr<CommOperations> operations_on_device(const std::string& transport,
                                                     Communicator& comm, int64_t max_bytes);

// Which GPU each rank of `comm` works on: equal texts are one GPU. Collective.
std::vector<std::string> devices_of_ranks(Communicator& comm);

}  // namespace longnet
