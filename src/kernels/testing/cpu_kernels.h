// For tests: the kernels of the cores on the instruction sets of the machine.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "core/check.h"
#include "kernels/attention_kernel.h"
#include "kernels/cpu/machine_peak.h"

namespace longnet {

// body(kernel) for each kernel of the cores on each instruction set that it supports.
template <class Body>
void on_every_target(const Body& body) {
  for (const KernelInfo& info : kernels())
    for (const std::string& target : simd_targets()) {
      const ScopedSimdTarget use(target);
      const auto kernel = info.make();
      if (info.name == "reference" || !kernel->why_unsupported({}).empty()) continue;
      SCOPED_TRACE(concat(info.name, " ", target));
      body(*kernel);
    }
}

// Returns what rounding P to 16 bits, by at most 2^-9 of each value, may add to a relative error.
inline double rounding_of_probabilities(const AttentionKernel& kernel, DType storage) {
  return kernel.rounds_probabilities(storage) ? 1.0 / 256 : 0.0;
}

}  // namespace longnet
