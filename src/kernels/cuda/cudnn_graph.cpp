#include "kernels/cuda/cudnn_graph.h"

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/token_range.h"
#include "kernels/cuda/cudnn_sdpa.h"

namespace longnet {
namespace {

// Bytes of what a backward pass keeps for itself, before cuDNN's own scratch memory.
int64_t delta_bytes(const SdpaShape& s) {
  const int64_t rows = s.outer * s.inner * s.rows;
  return s.backward ? ceil_div(rows * int64_t{sizeof(float)}, kTensorAlignment) * kTensorAlignment
                    : 0;
}
int64_t grad_q_sum_bytes(const SdpaShape& s) {
  const int64_t values = s.outer * s.inner * s.rows * s.head_dim;
  return s.any_order ? values * int64_t{sizeof(float)} : 0;
}

Descriptor describe_device(int32_t index) {
  Descriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device.set(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, index);
  return std::move(device.finalize("device"));
}

// Handles may not be shared by threads.
cudnnHandle_t handle_of_this_thread() {
  struct Destroy {
    void operator()(cudnnContext* handle) const { cudnn().destroy(handle); }
  };
  static thread_local std::map<int, std::unique_ptr<cudnnContext, Destroy>> handles;  // by device
  auto& handle = handles[current_device()];
  if (!handle) {
    cudnnHandle_t made = nullptr;
    check_cudnn(cudnn().create(&made), "cudnnCreate");
    handle.reset(made);
  }
  return handle.get();
}

// A plan is made with a handle, as all of cuDNN's users do, or where that is refused from the
// description of the device.
class GraphPlan final : public SdpaPlan {
 public:
  // `lse_alignment`: bytes that the plan may rely on.
  GraphPlan(const SdpaShape& shape, int64_t lse_alignment, bool by_handle)
      : shape_(shape),
        lse_alignment_(lse_alignment),
        handle_(by_handle ? handle_of_this_thread() : nullptr),
        graph_(sdpa_graph(shape, lse_alignment, handle_)) {
    if (!by_handle) device_ = describe_device(current_device());
  }
  // Returns false, with the reasons added to `reasons`, where no configuration makes a plan.
  bool build(std::string& reasons) {
    for (const Descriptor& configuration : configurations(graph_, device_)) try {
        build(configuration);
        return true;
      } catch (const Error& e) {
        add_reason(reasons, e);
      }
    return false;
  }
  static void add_reason(std::string& reasons, const Error& e) {
    reasons += concat(reasons.empty() ? "" : "; ", e.what());
  }

  int64_t workspace_bytes() const override {
    return delta_bytes(shape_) + grad_q_sum_bytes(shape_) + workspace_;
  }
  void launch(const SdpaPointers& at, void* workspace, const Stream& stream) const override;

 private:
  void build(const Descriptor& configuration) {
    Descriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (device_)
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, *device_);
    else
      plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, handle_);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration).finalize("plan");
    check_cudnn(cudnn().get(plan.handle(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                            CUDNN_TYPE_INT64, 1, nullptr, &workspace_),
                "workspace");
    plan_ = std::move(plan);
  }

  SdpaShape shape_;
  int64_t lse_alignment_;
  cudnnHandle_t handle_;
  OperationGraph graph_;
  std::optional<Descriptor> device_, plan_;
  int64_t workspace_ = 0;
};

void GraphPlan::launch(const SdpaPointers& at, void* workspace, const Stream& stream) const {
  check(reinterpret_cast<uintptr_t>(at.lse) % size_t(lse_alignment_) == 0,
        "cuDNN's plan wants LSEs aligned to ", lse_alignment_, " bytes: use kernel cuda");
  const cudnnHandle_t handle = handle_of_this_thread();
  check_cudnn(cudnn().set_stream(handle, stream.handle()), "cudnnSetStream");
  float scale = 1.0f / std::sqrt(float(shape_.head_dim));
  float hidden = std::numeric_limits<float>::lowest(), one = 1.0f;
  std::vector<std::pair<int64_t, const void*>> tensors{
      {kQ, at.q}, {kK, at.k}, {kV, at.v}, {kO, at.o}, {kLse, at.lse}, {kScale, &scale}};
  if (shape_.mask != ViewMask::kNone) tensors.emplace_back(kHidden, &hidden);
  auto* own = static_cast<std::byte*>(workspace);
  if (shape_.backward) {
    tensors.insert(tensors.end(), {{kOne, &one},
                                   {kGradOut, at.grad_out},
                                   {kGradQ, at.grad_q},
                                   {kGradK, at.grad_k},
                                   {kGradV, at.grad_v},
                                   {kDelta, own}});
    own += delta_bytes(shape_);
    if (shape_.any_order) tensors.emplace_back(kGradQSum, own);
    own += grad_q_sum_bytes(shape_);
  }
  std::vector<int64_t> uids;
  std::vector<const void*> data;
  for (const auto& [uid, address] : tensors) {
    uids.push_back(uid);
    data.push_back(address);
  }
  Descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, uids)
      .set_raw(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, data.size(), data.data())
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, static_cast<void*>(own))
      .finalize("variant pack");
  check_cudnn(cudnn().execute(handle, plan_->handle(), pack.handle()), "execute");
}

std::unique_ptr<const SdpaPlan> make_plan(const SdpaShape& shape) {
  const std::string misaligned = why_misaligned(shape);
  check(misaligned.empty(), "cuDNN: ", misaligned);
  std::string reasons;
  for (const bool by_handle : {true, false})
    for (const int64_t lse_alignment : lse_alignments(shape)) try {
        auto plan = std::make_unique<GraphPlan>(shape, lse_alignment, by_handle);
        if (plan->build(reasons)) return plan;
      } catch (const Error& e) {
        GraphPlan::add_reason(reasons, e);
      }
  throw Error("cuDNN offers no plan for ", shape.backward ? "the backward pass of " : "",
              "attention of ", shape.outer, " x ", shape.inner, " x ", shape.rows, " rows, ",
              shape.keys, " keys, head_dim ", shape.head_dim, reasons.empty() ? "" : ": ", reasons);
}

}  // namespace

std::string why_cudnn_absent() {
  if (const std::string why = cudnn().library.why_missing("cuDNN"); !why.empty())
    return why + "; use kernel cuda";
  const auto version = int(cudnn().version());
  if (version / 10000 != CUDNN_MAJOR || version < 90800)
    return concat("cuDNN ", library_version_text(version), " was found, this build needs ",
                  CUDNN_MAJOR, ".8 or a newer ", CUDNN_MAJOR,
                  ": put one on the library path, or use kernel cuda");
  return "";
}

std::string describe_cudnn() {
  std::string why = why_cudnn_absent();
  if (!why.empty()) return why;
  return concat(library_version_text(int(cudnn().version())), " (headers ", CUDNN_MAJOR, ".",
                CUDNN_MINOR, ".", CUDNN_PATCHLEVEL, ")");
}

const SdpaPlan& sdpa_plan(const SdpaShape& shape) {
  // Plans of this thread, because a plan belongs to the handle that it was made with. Never freed:
  // cuDNN's own statics may be destroyed before ours.
  using Plans = std::map<std::pair<int, SdpaShape>, std::unique_ptr<const SdpaPlan>>;
  static thread_local Plans& plans = *std::make_unique<Plans>().release();
  auto& plan = plans[{current_device(), shape}];
  if (!plan) plan = make_plan(shape);
  return *plan;
}

}  // namespace longnet
