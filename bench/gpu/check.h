// Parts of gpu_check: each compares something that a device computes with the CPU's reference.
#pragma once
#include <cstdint>
#include <string>

#include "gpu/support.h"

namespace longnet::gpu {

struct Outcome {
  int64_t cases = 0, failed = 0;
  std::string first_failure{};
  double worst = 0;                               // relative L2 error
  void expect(bool ok, const std::string& what);  // prints what failed
};

// Prints why something is left out; returns whether there was a reason.
bool left_out(const std::string& why);

// `small`: shapes for compute-sanitizer.
void check_ipc(Outcome& out, bool small);
int run_ipc_child(const char* socket);  // the other process of check_ipc
void check_generator(Outcome& out, bool small);
void check_rows(Outcome& out, bool small);
void check_summaries(Outcome& out, bool small);
void check_gemm(Outcome& out, bool small);
void check_model(Outcome& out, bool small);
void check_attend(Outcome& out, bool small);
void check_backward(Outcome& out, bool small);
void check_branches(Outcome& out, bool small);
void check_sm90a(Outcome& out, bool small);
void check_sm90a_backward(Outcome& out, bool small);
void check_cudnn(Outcome& out, bool small);
void check_cudnn_backward(Outcome& out, bool small);
void check_programs(Outcome& out, bool small);
void check_programs_model(Outcome& out, bool small);
void check_programs_backward(Outcome& out, bool small);
void check_programs_sm90a(Outcome& out, bool small);
void check_virtual(Outcome& out, bool small);
void check_refusals(Outcome& out, bool small);

}  // namespace longnet::gpu
