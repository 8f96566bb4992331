// Tasks of a model's layers on a GPU (kernels/model_kernel.h): its products by cuBLASLt, the other
// functions by kernels of their own.
#pragma once
#include <string>

#include "kernels/cuda/prepared.h"
#include "kernels/model_kernel.h"

namespace longnet {

// Pointers are the device's: nothing of the task but its shapes is read here, and its matrices'
// types may be unlike. Throws Error with the reason for what it cannot run. Sums have one order.
Prepared prepare_model_task(const ModelTask& task, MemoryLedger& ledger);

// Empty when this build and machine have what it needs, else why not.
std::string why_device_model_absent();

}  // namespace longnet
