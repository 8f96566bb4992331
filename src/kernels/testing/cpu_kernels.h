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
  for (const std::string name : {"cpu", "cpu_amx"})
    for (const std::string& target : simd_targets()) {
      const ScopedSimdTarget use(target);
      const auto kernel = make_kernel(name);
      if (!kernel->why_unsupported({}).empty()) continue;
      SCOPED_TRACE(concat(name, " ", target));
      body(*kernel);
    }
}

// What powers that are rounded to 16 bits, by 2^-9 of each at most, add to a relative error.
inline double rounding_of_powers(const AttentionKernel& kernel, DType storage) {
  return kernel.rounds_powers(storage) ? 1.0 / 256 : 0.0;
}

}  // namespace longnet
