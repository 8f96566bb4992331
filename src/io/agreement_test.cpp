#include "io/agreement.h"

#include <gmock/gmock.h>

#include "io/result.h"

namespace longnet {
namespace {

PointRecord with_loss(const std::string& algorithm, double loss) {
  PointRecord r;
  r.params.algorithm = algorithm;
  r.params.scope = Scope::kModel;
  r.params.problem.seq_len = 1024;
  r.id = point_id(r.params);
  r.timing.median_s = 1;
  r.metrics["loss_nats"] = loss;
  return r;
}

TEST(Agreement, LossesOfOneFunctionAreEqual) {
  PointRecord one = with_loss("local", 5.5), other = with_loss("ring", 5.5 * (1 + 5e-7));
  other.params.ranks = 4;
  other.params.layout = LayoutKind::kZigzag;
  other.params.pass = Pass::kStep;
  other.params.model.recompute = Recompute::kFull;
  EXPECT_THAT(disagreeing_points({one, other}), testing::IsEmpty());
  EXPECT_EQ(summarize({one, other}, 2).verdict, "pass");

  other.metrics["loss_nats"] = 5.5 * (1 + 2e-6);
  const auto found = disagreeing_points({one, other});
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found.at(other.id), testing::HasSubstr(one.id + " (local"));
  for (PointRecord* r : {&one, &other}) r->params.problem.dtype = DType::kBFloat16;
  EXPECT_THAT(disagreeing_points({one, other}), testing::IsEmpty());
  other.metrics["loss_nats"] = 5.5 * (1 + 2e-2);
  EXPECT_EQ(disagreeing_points({one, other}).size(), 1u);
  for (PointRecord* r : {&one, &other}) r->metrics = {{"output_product", -0.5}};
  other.metrics["output_product"] = -0.5 + 2e-2;
  EXPECT_THAT(disagreeing_points({one, other}), testing::IsEmpty());
  other.metrics["output_product"] = -0.5 + 4e-2;
  EXPECT_EQ(disagreeing_points({one, other}).size(), 1u);
  for (PointRecord* r : {&one, &other}) r->params.problem.dtype = DType::kFloat32;
  const Summary summary = summarize({one, other}, 2);
  EXPECT_EQ(summary.verdict, "fail");
  EXPECT_EQ(summary.disagreeing.size(), 1u);
}

TEST(Agreement, OtherFunctionsHaveOtherLosses) {
  const PointRecord one = with_loss("dilated", 5.5);
  const std::vector<void (*)(PointParams&)> changes{
      [](PointParams& p) { p.problem.seed = 2; }, [](PointParams& p) { p.problem.causal = true; },
      [](PointParams& p) { p.model.layers = 7; },
      [](PointParams& p) {
        p.pattern.branches = {{64, 2}};
      },
      [](PointParams& p) { p.pattern.mix = MixRule::kSum; }};
  for (const auto& change : changes) {
    PointRecord other = with_loss("dilated", 7);
    change(other.params);
    EXPECT_THAT(disagreeing_points({one, other}), testing::IsEmpty());
  }
}

}  // namespace
}  // namespace longnet
