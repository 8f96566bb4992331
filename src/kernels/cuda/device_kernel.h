// Attention on a GPU, by name: the device's side of attention_kernel.h.
//
// Grids of tasks are the same as on the CPU, with device addresses. They are prepared once (lists
// are copied to the device, plans are made) and launched many times.
//
//   const auto kernel = make_device_kernel("cuda");
//   const Prepared attend = kernel->prepare(grids, {.head_dim = 64, .causal = true}, ledger);
//   attend.launch(stream);
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/attention_kernel.h"
#include "kernels/cuda/prepared.h"

namespace longnet {

// Options of an attend or its backward pass, of Q, K, V and dO in bf16.
struct DeviceAttendOptions {
  int64_t head_dim = 64;
  bool causal = false;
  float output_scale = 1.0f;  // O is multiplied by it
  bool merge = false;         // fold into what the output holds, by LSE, instead of overwriting it
  DType output_dtype = DType::kFloat32;  // bf16: of O alone, LSE is fp32
  // Another kernel (NCCL's) needs multiprocessors while this one runs: persistent blocks would keep
  // it waiting.
  bool concurrent = false;
  // cudnn: results stay in scratch memory as the library writes them, to time it alone.
  bool keep_16_bits = false;
  // cudnn's backward pass: sums of dQ in any order, with less scratch memory, to time it so.
  bool any_order = false;
};

class DeviceKernel {
 public:
  virtual ~DeviceKernel() = default;
  // True when options.merge is taken; else the caller merges with its own launch.
  virtual bool merges() const = 0;
  // Scratch memory is booked as "workspace", lists as "task_lists". Throws Error for tasks that
  // this kernel cannot run, with the reason.
  virtual Prepared prepare(std::span<const AttendGrid> grids, const DeviceAttendOptions& options,
                           MemoryLedger& ledger) const = 0;
  // Prepares the backward pass (AttentionKernel::attend_backward). Without options.any_order each
  // sum has one order: its bits are the same in every launch. Throws Error where the kernel has no
  // backward pass.
  virtual Prepared prepare_backward(std::span<const BackwardGrid>, const DeviceAttendOptions&,
                                    MemoryLedger&) const {
    throw Error("this kernel has no backward pass");
  }
};

struct DeviceKernelInfo {
  std::string_view name, about;                 // one line for `lnbench list`
  int64_t max_head_dim, max_head_dim_backward;  // 0: no backward pass
  bool rounds_output;                           // takes options.output_dtype
  std::string (*why_absent)();                  // reason on this machine; empty: it is present
  std::unique_ptr<DeviceKernel> (*make)();
};
// Builds without CUDA list them too.
std::span<const DeviceKernelInfo> device_kernels();
bool is_device_kernel(std::string_view name);
// Empty when the kernel can run such attention in this pass, else why not. Needs neither a device
// nor a build with CUDA: `lnbench plan` asks it anywhere.
std::string why_device_kernel_unsupported(std::string_view name, const AttendOptions& options,
                                          Pass pass = Pass::kForward);
// Empty when the kernel can run on this machine, else what is missing: build, driver, device,
// library.
std::string why_device_kernel_absent(std::string_view name);
// Throws UsageError naming the known kernels, or the reason why this build lacks it.
std::unique_ptr<DeviceKernel> make_device_kernel(std::string_view name);

// ---- the kernels themselves ----

// Tile shapes of a kernel for a padded head dimension, the one that it takes by itself first.
std::vector<std::string> cuda_kernel_shapes(int64_t head_dim, bool causal = false);
std::unique_ptr<DeviceKernel> make_cuda_kernel(std::string_view shape = {});

// Empty when the current device can run it, else why not.
std::string why_sm90a_absent();
std::vector<std::string> sm90a_kernel_shapes(int64_t head_dim, bool causal = false);
std::unique_ptr<DeviceKernel> make_sm90a_kernel(std::string_view shape = {});

// `cudnn`: scaled-dot-product attention of cuDNN on strided views, to compare with. Its gradients
// are rounded to 16 bits before they are added to those in fp32. Empty when the
// library is there, of the headers' major version and 9.8 or newer, else why not and what to do.
std::string why_cudnn_absent();
// "9.14.0 (headers 9.14.0)", or why not.
std::string describe_cudnn();
std::unique_ptr<DeviceKernel> make_cudnn_kernel();

// `gather`, as published implementations do it: Q, K and V rows of each task are packed into dense
// buffers, which `dense` attends to, O and LSE are scattered back. It exists to be compared with.
std::unique_ptr<DeviceKernel> make_gather_kernel(std::unique_ptr<DeviceKernel> dense);

}  // namespace longnet
