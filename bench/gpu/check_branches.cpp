// gpu_check: whole branches (2048 r, r) of packed tensors, every row of every kernel against those
// of `cuda`, which check_attend and check_backward compare with the reference. Here tiles outnumber
// blocks, tensor maps have coordinates beyond 0, and cuDNN's views have folded strides.
#include <array>

#include "core/check.h"
#include "execute/tolerances.h"
#include "gpu/check.h"
#include "gpu/support.h"
#include "kernels/cuda/device_kernel.h"

namespace longnet::gpu {
namespace {

// Two kernels that are each as far from the truth as they may be.
constexpr double kApart = 2;

struct BranchCase {
  int64_t head_dim, heads, tokens, rows, dilation_rate;  // rows of a segment
  bool causal;
};
std::string to_string(const BranchCase& c) {
  return concat("branch (", c.rows * c.dilation_rate, ", ", c.dilation_rate, ") d ", c.head_dim,
                " heads ", c.heads, " tokens ", c.tokens, " causal ", c.causal);
}

class BranchCheck {
 public:
  BranchCheck(const BranchCase& c, Outcome& out)
      : case_(c), out_(out), tensors_(c.tokens, c.heads, c.head_dim, ledger_) {}

  // O and LSE of the first kernel are what the others' are compared with.
  void attend(const DeviceKernel& kernel, const std::string& name) {
    guarded(name, [&] {
      const Stream stream;
      stream.fill(tensors_.o(), 0xFF, 4 * tensors_.elements());
      stream.fill(tensors_.lse(), 0xFF, 4 * rows());
      const Prepared work =
          kernel.prepare(tensors_.branch(segment(), case_.dilation_rate),
                         {.head_dim = case_.head_dim, .causal = case_.causal}, ledger_);
      work.launch(stream);
      stream.synchronize();
      expect(name, "O", o_, download<float>(tensors_.o(), tensors_.elements()),
             kRoundedPowersTolerance);
      expect(name, "LSE", lse_, download<float>(tensors_.lse(), rows()),
             kRoundedPowersLseTolerance);
    });
  }
  void backward(const DeviceKernel& kernel, const std::string& name) {
    guarded(name, [&] {
      const Stream stream;
      const auto grids = tensors_.backward(segment(), case_.dilation_rate, case_.causal);
      const Prepared work = kernel.prepare_backward(
          grids, {.head_dim = case_.head_dim, .causal = case_.causal}, ledger_);
      work.launch(stream);
      stream.synchronize();
      const auto* const first = reinterpret_cast<const float*>(tensors_.gradients().data());
      for (const int64_t i : {0, 1, 2})
        expect(name, std::array{"dQ", "dK", "dV"}[size_t(i)], gradients_[size_t(i)],
               download<float>(first + i * tensors_.elements(), tensors_.elements()),
               kRoundedGradientTolerance);
    });
  }

 private:
  int64_t segment() const { return case_.rows * case_.dilation_rate; }
  int64_t rows() const { return case_.tokens * case_.heads; }

  template <class F>
  void guarded(const std::string& name, F body) {
    note_work(concat(name, " ", to_string(case_)));
    try {
      body();
    } catch (const Error& e) {
      out_.expect(false, concat(name, " ", to_string(case_), ": ", e.what()));
      Stream().synchronize();  // throws again when the device is lost
    }
  }
  void expect(const std::string& name, const char* what, std::vector<float>& expected,
              std::vector<float> got, double tolerance) {
    if (expected.empty()) {
      expected = std::move(got);
      return;
    }
    const double off = distance(got, expected);
    out_.worst = std::max(out_.worst, off);
    out_.expect(off <= kApart * tolerance,
                concat(name, " ", to_string(case_), ": ", what, " is ", off, " from that of cuda"));
  }

  BranchCase case_;
  Outcome& out_;
  MemoryLedger ledger_;
  PackedTensors tensors_;
  std::vector<float> o_, lse_;
  std::array<std::vector<float>, 3> gradients_;
};

std::vector<BranchCase> branch_cases(bool small) {
  std::vector<BranchCase> cases;
  for (const bool causal : {false, true}) {
    if (small) {  // several tiles of heads, offsets and segments for each of the emulator's blocks
      for (const auto& [r, rows] : {std::pair<int64_t, int64_t>{1, 80}, {4, 40}, {16, 10}})
        cases.push_back({causal ? 128 : 64, 3, 320, rows, r, causal});
      continue;
    }
    for (const auto& [d, heads] : {std::pair<int64_t, int64_t>{64, 12}, {128, 8}})
      for (const int64_t r : {1, 4, 16}) cases.push_back({d, heads, 65536, 2048, r, causal});
  }
  return cases;
}

}  // namespace

void check_branches(Outcome& out, bool small) {
  const bool no_sm90a = left_out(why_sm90a_absent()), no_cudnn = left_out(why_cudnn_absent());
  for (const BranchCase& c : branch_cases(small)) {
    BranchCheck check(c, out);
    check.attend(*make_cuda_kernel(), "cuda");
    if (!no_cudnn) check.attend(*make_cudnn_kernel(), "cudnn");
    if (!no_sm90a) check.attend(*make_sm90a_kernel(), "cuda_sm90a");
    check.backward(*make_cuda_kernel(), "cuda, backward");
    if (!no_sm90a) check.backward(*make_sm90a_kernel(), "cuda_sm90a, backward");
    if (!no_cudnn) check.backward(*make_cudnn_kernel(), "cudnn, backward");
  }
}

}  // namespace longnet::gpu
