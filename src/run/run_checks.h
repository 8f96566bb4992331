// Checks of every run of a point, beside the timing: buffers are poisoned before a run, and what it
// made is judged after it. The one place where measuring attention and measuring a model differ.
#pragma once
#include <memory>

#include "run/backend.h"

namespace longnet {

class RunChecks {
 public:
  RunChecks(PointSession& session, Communicator& comm) : session_(session), comm_(comm) {}
  virtual ~RunChecks() = default;

  // Before each run; a barrier must follow, since a rank that runs sends into the others' buffers.
  // Collective.
  void prepare_run();
  // Once, after the last run. Collective.
  void record(PointRecord& record);

 protected:
  // After run `run`, counted from 1. Collective.
  virtual void check_run(int64_t run, bool is_last) = 0;
  virtual void record_findings(PointRecord& record) = 0;

  PointSession& session_;
  Communicator& comm_;
  double compare_s_ = 0;

 private:
  int64_t runs_ = 0;
  double poison_s_ = 0;
};

// Checks of attention: sampled rows of what a run wrote are compared with the definition, which
// recomputes them once, and laws of conservation, which take all rows of all ranks, are judged
// after the first sample, the last and one between them. Runs the program once where gradients need
// an output. Collective.
std::unique_ptr<RunChecks> make_attention_checks(PointSession& session,
                                                 const RunnerOptions& options, Communicator& comm);

// Checks of a model: every run gives the same loss, no value is NaN, the last step has made AdamW's
// weights, and its gradient g is that of the program of the loss alone: from the weights w - d to
// w + d the loss rises by 2 <g, d>, in the direction of g and in one of random signs. A layer alone
// is checked likewise: <y, dO> of its output y takes the place of the loss, and its input counts
// among the weights. Collective.
std::unique_ptr<RunChecks> make_model_checks(PointSession& session, const PointPlan& plan,
                                             const RunnerOptions& options, Communicator& comm);

// Check of attention inside a model, or a layer, after a run: sampled rows of every stratum that it
// has written in layer 0 (where layers share its memory, in the one that ran last) are compared
// with the definition in double on the rows of Q, K and V there. A function that is wrong alike
// forward and backward has right gradients of a wrong loss: it shows here. Collective.
struct AttentionInModel {
  CheckOutcome outcome;  // the rows of all sequences
  SampleChoice choice;   // each sequence's, and its heads'
};
AttentionInModel check_attention_in_model(const Executor& executor, const CheckConfig& config,
                                          Communicator& comm);

std::unique_ptr<RunChecks> make_run_checks(PointSession& session, const PointPlan& plan,
                                           const RunnerOptions& options, Communicator& comm);

}  // namespace longnet
