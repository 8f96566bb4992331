// Checks the gradients of a backward pass: sampled rows of dQ, dK and dV against the definition
// (definition.h), and laws of conservation over all rows.
//
// A row of dQ is computed from all keys of its query. A row of dK and dV is a sum over queries whose
// LSE would each take all keys again, so it takes O and L of the run, of which the rows of dQ are
// samples; each rank adds what its own queries give. In a mixture by sum or mean, whose branches have
// each their own O and L, dK and dV have the laws alone.
#pragma once
#include <array>
#include <vector>

#include "comm/communicator.h"
#include "execute/sample_check.h"

namespace longnet {

using GradientErrors = std::array<SampleErrors, 3>;  // of dQ, dK and dV

class GradientCheck {
 public:
  static constexpr int64_t kMostKeys = 32;

  // Takes some of the queries, and the keys of their tokens. The output of the forward pass must be
  // there. The executor must outlive it. Collective.
  GradientCheck(const Executor& executor, const std::vector<QuerySample>& queries,
                Communicator& comm);

  GradientErrors compare() const;  // of the last run
  // Every rank gets the outcomes of all ranks' errors. `tolerance` 0: twice that of an output, as a
  // gradient is a product of more factors.
  std::array<CheckOutcome, 3> judge_together(const GradientErrors& mine, Communicator& comm,
                                             double tolerance) const;

 private:
  const Executor& executor_;
  std::array<ExpectedRows, 3> expected_;
};

inline constexpr double kLawTolerance = 1e-6;
// Laws that hold for any input: adding a vector to all keys changes no output, scaling Q up and K
// down neither, and the output is linear in V. Each is the difference of what should be equal over
// the sum of the absolute terms of all ranks, and is right up to kLawTolerance.
struct Conservation {
  double keys = 0;    // the sum of dK of a sequence and K/V head is 0; the worst one
  double scores = 0;  // <Q, dQ> = <K, dK>
  double values = 0;  // <V, dV> = <O, dO>
  double values_tolerance = kLawTolerance;  // of `values`: more where O was sent in bf16
  bool hold() const {
    return keys <= kLawTolerance && scores <= kLawTolerance && values <= values_tolerance;
  }
};
// The laws on the gradients of the last run. Collective.
Conservation conservation(const BoundProgram& bound, Communicator& comm);

}  // namespace longnet
