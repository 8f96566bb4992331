// cuDNN's backend graph API, opened at run time: plans for attention on strided views.
//
// The graphs are those of cudnn_sdpa.h. The header-only frontend is not needed.
#pragma once
#include <cstdint>

#include "core/cuda/device.h"
#include "kernels/cuda/strided_view.h"

namespace longnet {

// A backward pass reads O and LSE.
struct SdpaPointers {
  const void *q, *k, *v;
  void* o;
  float* lse;
  const void* grad_out = nullptr;
  void *grad_q = nullptr, *grad_k = nullptr, *grad_v = nullptr;
};

// One compiled plan for the device that was current when it was made.
class SdpaPlan {
 public:
  virtual ~SdpaPlan() = default;
  virtual int64_t workspace_bytes() const = 0;
  virtual void launch(const SdpaPointers& at, void* workspace, const Stream& stream) const = 0;
};

// The calling thread's plan for a shape on its device. Made when first asked for, in 0.25 to 0.6 s;
// throws Error with cuDNN's reason.
const SdpaPlan& sdpa_plan(const SdpaShape& shape);

}  // namespace longnet
