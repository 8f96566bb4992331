// The part of the GPU backend that every build has, for `lnbench plan` on any machine.
#pragma once
#include "kernels/cuda/device_kernel.h"
#include "run/backend.h"
#include "run/point_schedule.h"

namespace longnet {

class GpuPlanning : public Backend {
 public:
  bool on_gpu() const override { return true; }
  std::string why_unsupported(const PointParams& p) const override {
    return why_device_kernel_unsupported(p.kernel, attend_options(p));
  }
  std::string why_absent(const PointParams& p) const override {
    return why_device_kernel_absent(p.kernel);
  }
  int64_t workspace_bytes(const PointParams&, int) const override { return 0; }
  double fill_s_per_value() const override { return 0; }  // a GPU generates in no time
};

}  // namespace longnet
