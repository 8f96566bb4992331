// For tests: an attention task with its own storage, as unfavourable as the interface allows.
//
// Rows start at odd addresses, the gaps between rows hold NaN, the workspace starts as NaN, and the
// memory around the output rows is checked after each run.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention_kernel.h"

namespace longnet {

// Aligned as kernels ask for, and NaN wherever it is read before it is written. The memory of one
// that has ended serves the next of its size: fresh pages take longer than most tests' kernels.
class PoisonedWorkspace {
 public:
  explicit PoisonedWorkspace(int64_t bytes)
      : bytes_(size_t(bytes)), data_(std::move(kept(bytes_))) {
    if (!data_) data_.reset(static_cast<std::byte*>(::operator new(bytes_, kAlignment)));
    std::fill_n(data_.get(), bytes_, std::byte{0xFF});  // fp32 0xFFFFFFFF is a NaN
  }
  ~PoisonedWorkspace() { kept(bytes_) = std::move(data_); }
  PoisonedWorkspace(const PoisonedWorkspace&) = delete;
  PoisonedWorkspace& operator=(const PoisonedWorkspace&) = delete;
  std::span<std::byte> bytes() const { return {data_.get(), bytes_}; }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, kAlignment); }
  };
  using Memory = std::unique_ptr<std::byte, Free>;
  static Memory& kept(size_t bytes) {
    static std::map<size_t, Memory> all;
    return all[bytes];
  }

  size_t bytes_;
  Memory data_;
};

struct RunSpec {
  int64_t rows = 0, first_token = 0, token_step = 1;
  int64_t gap = 0;         // elements between rows
  float amplitude = 1.0f;  // factor on the elements of Q or K
};

struct AttendSpec {
  int64_t head_dim = 64;
  DType dtype = DType::kFloat32;
  bool causal = false;
  float output_scale = 1.0f;
  RunSpec q;
  std::vector<RunSpec> kv;
  const std::function<void()>* progress_hook = nullptr;
};

std::string to_string(const AttendSpec& spec);

// expect(spec) in both storage types, causal and not.
template <class Expect>
void in_every_way(AttendSpec spec, const Expect& expect) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16})
    for (const bool causal : {false, true}) {
      spec.dtype = dtype;
      spec.causal = causal;
      expect(spec);
    }
}

struct AttendResult {
  std::vector<float> o;    // [rows][head_dim]
  std::vector<float> lse;  // [rows]
  bool operator==(const AttendResult&) const = default;
};

class AttendCase {
 public:
  explicit AttendCase(const AttendSpec& spec);
  AttendOptions options() const;
  const AttendSpec& spec() const { return spec_; }

  // One task, alone. Fails the current test when the kernel writes outside the rows of the result.
  AttendResult run(const AttentionKernel& kernel) const;
  // Runs the tasks of all cases in one call, on `threads` threads.
  static std::vector<AttendResult> run_all(std::span<const AttendCase> cases,
                                           const AttentionKernel& kernel, int threads);

 private:
  struct Rows {
    std::vector<float> fp32;  // storage of one of the two dtypes
    std::vector<uint16_t> bf16;
    const void* first = nullptr;
  };
  Rows make_rows(const RunSpec& run, uint64_t seed, float amplitude) const;

  AttendSpec spec_;
  Rows q_;
  std::vector<Rows> k_, v_;
  std::vector<KvRun> kv_;
};

// ||a - b|| / ||b|| over all rows of O; 0 when both are zero.
double relative_error(const AttendResult& a, const AttendResult& b);
// The largest |a - b| of the LSE; infinite when one is -inf or NaN and the other is not.
double lse_error(const AttendResult& a, const AttendResult& b);

}  // namespace longnet
