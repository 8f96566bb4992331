// For tests: an algorithm on emulated devices, from its inputs to its check.
#pragma once
#include <string>

#include "schedule/program.h"

namespace longnet {

struct DeviceCase {
  std::string algorithm, transport = "cuda_ipc", collective = "native";
  int ranks = 1;
  int devices = 1;
  bool causal = false, merges = true, gather = false;
  LayoutKind layout = LayoutKind::kContiguous;
  MixRule mix = MixRule::kLse;
  DType output_dtype = DType::kFloat32;
  Pass pass = Pass::kForward;
  bool keep_gathered = false;
};
ShardedProblem device_problem(const DeviceCase& c);

// Three runs in a row, all rows checked, bytes counted. False where the algorithm refuses the case.
bool run_device_case(const DeviceCase& c);

}  // namespace longnet
