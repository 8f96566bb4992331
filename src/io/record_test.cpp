#include "io/record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/testing/test_support.h"
#include "json/json_tree.h"

namespace longnet {
namespace {

using testing::HasSubstr;

PointRecord full_record() {
  PointRecord r;
  r.id = "9c41d07b";
  r.params.algorithm = "dilated";
  r.params.transport = "mpi";
  r.params.ranks = 2;
  r.params.threads = 3;
  r.params.layout = LayoutKind::kZigzag;
  r.params.collective = "bruck";
  r.params.options.ulysses_degree = 4;
  r.params.options.ring_inner = 2;
  r.params.options.head_slice = 3;
  r.params.node_size = 8;
  r.params.replicas = 2;
  r.params.problem = {.seq_len = 1 << 20,
                      .num_heads = 12,
                      .num_kv_heads = 4,
                      .batch = 2,
                      .dtype = DType::kBFloat16,
                      .causal = true,
                      .seed = 5};
  r.params.pattern = {.branches = {{2048, 1}, {1 << 20, 512}, {1024, 1, 8}},
                      .offset = OffsetRule::kBlock,
                      .mix = MixRule::kSum,
                      .phase_parts = 2};
  set_timing(r, {1.0, 3.0, 2.0}, 3);
  r.phases = {0.5, 0.25, 0.125, 0.0625};
  r.per_rank = {{0, 1.5, 4096}, {1, 2.0}};
  r.work = {.tokens = 1 << 21,
            .flops = 3.5e21,
            .paper_macs = 1024,
            .flops_per_s = 1e11,
            .share_of_peak = 0.5,
            .coverage = {1.0, 1.0 / 512},
            .balance = 0.75};
  r.ablations = {.full_s = 2, .compute_only_s = 1.25, .communication_only_s = 0.5};
  r.comm = {100, 100, 4, 4, 0, 0, 100, 4, {"all_gather: bruck"}};
  r.memory = {.measured_peak_bytes = 1000,
              .predicted_peak_bytes = 900,
              .closed_form_bytes = 800,
              .resident_growth_bytes = 1100,
              .resident_difference = 0.1,
              .by_tag = {{"kv", 5}, {"q", 7}},
              .device_bytes = 2000};
  r.check = {.status = "pass",
             .reference = "double",
             .max_rel_error = 1e-6,
             .rel_l2_error = 1e-7,
             .spread_rel_l2_error = 2e-7,
             .queries = 64,
             .tolerance = 1e-5};
  r.metrics = {{"measured_share", 0.25}};
  r.timeline = {{0, "compute", "attend 3", 0.0, 0.5}, {1, "communication", "send", 0.5, 0.75}};
  return r;
}

TEST(Record, HasExactlyTheseKeys) {
  const JsonNode n = parse_json(record_to_json(full_record()), "r");
  const auto keys = [&](const char* section) { return n.find(section)->keys; };
  using testing::ElementsAre;
  EXPECT_THAT(n.keys, ElementsAre("id", "source", "status", "reason", "params", "timing", "phases",
                                  "per_rank", "work", "comm", "memory", "check", "ablations",
                                  "metrics", "timeline"));
  EXPECT_THAT(
      keys("params"),
      testing::IsSupersetOf(
          {"algorithm",  "mode",      "transport", "kernel",     "seq_len",        "ranks",
           "batch",      "heads",     "kv_heads",  "head_dim",   "dtype",          "causal",
           "layout",     "pattern",   "branches",  "collective", "ulysses_degree", "ring_inner",
           "head_slice", "node_size", "replicas"}));
  EXPECT_THAT(keys("timing"), ElementsAre("samples_s", "median_s", "ci_low_s", "ci_high_s",
                                          "ci_level", "p95_s", "min_s", "warmup", "reduction"));
  EXPECT_THAT(keys("phases"),
              ElementsAre("compute_s", "communication_s", "exposed_communication_s", "merge_s"));
  EXPECT_THAT(keys("work"),
              ElementsAre("tokens", "flops", "paper_macs", "flops_per_s", "share_of_peak",
                          "peak_flops_per_s", "coverage", "balance"));
  EXPECT_THAT(keys("ablations"), ElementsAre("full_s", "compute_only_s", "communication_only_s",
                                             "serialised_s", "single_attend_s"));
  EXPECT_TRUE(n.find("ablations")->find("serialised_s")->is_null());
  EXPECT_THAT(keys("comm"), ElementsAre("counted_bytes_per_rank", "predicted_bytes_per_rank",
                                        "counted_messages_per_rank", "predicted_messages_per_rank",
                                        "modelled_bytes_per_rank", "modelled_messages_per_rank",
                                        "closed_form_bytes_per_rank",
                                        "closed_form_messages_per_rank", "collectives_used"));
  EXPECT_THAT(keys("memory"), ElementsAre("measured_peak_bytes", "predicted_peak_bytes",
                                          "closed_form_bytes", "resident_growth_bytes",
                                          "resident_difference", "by_tag", "device_bytes"));
  EXPECT_THAT(keys("check"),
              ElementsAre("status", "reference", "max_rel_error", "rel_l2_error",
                          "spread_rel_l2_error", "queries", "tolerance", "runs", "strata",
                          "strata_left_out", "poison_s", "compare_s", "proof_s"));
  EXPECT_EQ(n.find("per_rank")->items[0].whole("pairs"), 4096);
  EXPECT_TRUE(n.find("per_rank")->items[1].find("pairs")->is_null());
  const JsonNode* branches = n.find("params")->find("branches");
  EXPECT_EQ(branches->items[1].whole("dilation_rate"), 512);
  EXPECT_EQ(branches->items[1].find("summary_tokens"), nullptr);
  EXPECT_EQ(branches->items[2].whole("summary_tokens"), 8);
  EXPECT_EQ(n.find("timing")->text("reduction"), "max");
}

TEST(Record, RoundTrips) {
  const PointRecord r = full_record();
  const std::string text = record_to_json(r);
  const PointRecord back = record_from_json(text);
  EXPECT_EQ(record_to_json(back), text);
  EXPECT_EQ(back.params.problem, r.params.problem);
  EXPECT_EQ(back.params.pattern, r.params.pattern);
  EXPECT_EQ(back.params.layout, LayoutKind::kZigzag);
  EXPECT_EQ(back.params.collective, "bruck");
  EXPECT_EQ(back.params.options.ulysses_degree, 4);
  EXPECT_EQ(back.params.options.ring_inner, 2);
  EXPECT_EQ(back.params.options.head_slice, 3);
  EXPECT_EQ(back.params.node_size, 8);
  EXPECT_EQ(back.params.replicas, 2);
  EXPECT_THAT(back.comm.collectives_used, testing::ElementsAre("all_gather: bruck"));
  EXPECT_EQ(back.work.flops, 3.5e21);
  EXPECT_EQ(back.work.balance, 0.75);
  ASSERT_TRUE(back.ablations);
  EXPECT_EQ(back.ablations->compute_only_s, 1.25);
  EXPECT_TRUE(std::isnan(back.ablations->single_attend_s));
  EXPECT_EQ(back.memory.by_tag, r.memory.by_tag);
  EXPECT_EQ(back.memory.device_bytes, 2000);
  EXPECT_EQ(back.timeline[1].op, "send");
  EXPECT_EQ(back.metrics, r.metrics);
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST(Record, WhatWasNotMeasuredIsNullAndComesBackAsNan) {
  Point point{.id = "00000001",
              .params = {},
              .status = PointStatus::kSkippedMemory,
              .reason = "needs 3 TiB"};
  point.params.algorithm = "ring";
  point.params.problem.seq_len = 8;
  point.params.problem.batch = 4;
  point.params.pattern = dense_pattern(8);
  const PointRecord r = make_record(point, Source::kSimulated);
  const JsonNode n = parse_json(record_to_json(r), "r");
  EXPECT_TRUE(n.find("timing")->find("median_s")->is_null());
  EXPECT_TRUE(n.find("comm")->find("counted_bytes_per_rank")->is_null());
  EXPECT_EQ(n.text("reason"), "needs 3 TiB");
  EXPECT_EQ(n.find("timeline"), nullptr);
  EXPECT_EQ(n.find("ablations"), nullptr);
  EXPECT_TRUE(n.find("work")->find("balance")->is_null());
  const PointRecord back = record_from_json(record_to_json(r));
  EXPECT_TRUE(std::isnan(back.timing.median_s));
  EXPECT_TRUE(std::isnan(back.work.share_of_peak));
  EXPECT_FALSE(back.comm.counted_bytes_per_rank);
  EXPECT_EQ(back.source, Source::kSimulated);
  EXPECT_EQ(back.status, PointStatus::kSkippedMemory);
  EXPECT_EQ(back.work.tokens, 32);
}

// Results of before these keys were written.
TEST(Record, AbsentOptionsReadAsTheirDefaults) {
  const PointRecord r = record_from_json(
      R"({"id": "00000001", "source": "measured", "status": "ok",
          "params": {"algorithm": "ring", "branches": [{"segment_length": 8}]}})");
  EXPECT_EQ(r.params.collective, "native");
  EXPECT_EQ(r.params.options.ulysses_degree, 0);
  EXPECT_EQ(r.params.options.head_slice, 0);
  EXPECT_EQ(r.params.pattern, dense_pattern(8));
  EXPECT_TRUE(std::isnan(r.work.balance));
  EXPECT_FALSE(r.ablations);
}

TEST(Record, NamesThePatternOfItsPoint) {
  PointRecord r = full_record();
  const auto written = [&] {
    return parse_json(record_to_json(r), "r").find("params")->text("pattern");
  };
  r.params.problem.seq_len = 64;
  EXPECT_EQ(written(), "dilated");
  r.params.pattern = {.branches = {{64, 1}}};  // dilated, on a sequence no longer than w_0
  EXPECT_EQ(written(), "dilated");
  EXPECT_EQ(record_from_json(record_to_json(r)).params.pattern, r.params.pattern);
  r.params.pattern = dense_pattern(64);
  EXPECT_EQ(written(), "dense");
  r.params.pattern = sparse_pattern(16, 4);
  EXPECT_EQ(written(), "sparse");
  std::string text = record_to_json(r);
  text.replace(text.find("\"sparse\""), 8, "\"spares\"");
  EXPECT_THAT(usage_error([&] { record_from_json(text); }),
              testing::HasSubstr("unknown name 'spares'"));
}

// Results of before the kind was written leave it to the branches.
TEST(Record, ThePatternOfAnOldResultFollowsFromItsBranches) {
  const auto kind = [](const std::string& branches) {
    return record_from_json(concat(R"({"id": "00000001", "source": "measured", "status": "ok",
        "params": {"algorithm": "x", "seq_len": 64, "branches": [)",
                                   branches, "]}}"))
        .params.pattern.kind;
  };
  const std::string part = R"({"segment_length": 16, "dilation_rate": 1})";
  EXPECT_EQ(kind(R"({"segment_length": 64, "dilation_rate": 1})"), PatternKind::kDense);
  EXPECT_EQ(kind(part), PatternKind::kDilated);
  EXPECT_EQ(kind(part + R"(, {"segment_length": 64, "dilation_rate": 4})"), PatternKind::kDilated);
  EXPECT_EQ(kind(part + R"(, {"segment_length": 16, "summary_tokens": 2})"), PatternKind::kSparse);
}

TEST(Record, OldResultsNameTheirModeAsTransport) {
  const auto params_of = [](const std::string& params) {
    return record_from_json(
               concat(R"({"id": "00000001", "source": "measured", "status": "ok", "params": )",
                      params, "}"))
        .params;
  };
  const PointParams old = params_of(R"({"algorithm": "ring", "transport": "virtual"})"),
                    now = params_of(R"({"mode": "virtual", "transport": null})"),
                    real = params_of(R"({"transport": "mpi"})");
  EXPECT_EQ(old.mode, Mode::kVirtual);
  EXPECT_EQ(old.transport, "");
  EXPECT_EQ(now.mode, Mode::kVirtual);
  EXPECT_EQ(now.transport, "");
  EXPECT_EQ(real.mode, Mode::kReal);
  EXPECT_EQ(real.way(), "mpi");
  EXPECT_EQ(now.way(), "virtual");
  EXPECT_THROW(params_of(R"({"dtype": "fp8"})"), UsageError);
}

TEST(Record, StatusAndSourceNamesRoundTrip) {
  for (int i = 0; i <= int(PointStatus::kError); ++i)
    EXPECT_EQ(parse_enum<PointStatus>(to_string(PointStatus(i))), PointStatus(i));
  for (int i = 0; i <= int(Source::kExtrapolated); ++i)
    EXPECT_EQ(parse_enum<Source>(to_string(Source(i))), Source(i));
  EXPECT_THROW(parse_enum<PointStatus>("fine"), UsageError);
  EXPECT_THROW(parse_enum<Source>("guessed"), UsageError);
  EXPECT_THROW(record_from_json("{}"), UsageError);
  EXPECT_THROW(record_from_json("[]"), UsageError);
}

TEST(Record, TimingBlockOfTenSamples) {
  PointRecord r;
  set_timing(r, {10, 9, 8, 7, 6, 5, 4, 3, 2, 1}, 2);
  EXPECT_EQ(r.timing.median_s, 5.5);
  EXPECT_EQ(r.timing.ci_low_s, 2);
  EXPECT_EQ(r.timing.ci_high_s, 9);
  EXPECT_NEAR(r.timing.ci_level, 0.979, 5e-4);
  EXPECT_EQ(r.timing.min_s, 1);
  EXPECT_EQ(r.timing.warmup, 2);
  PointRecord none;
  set_timing(none, {}, 1);
  EXPECT_TRUE(std::isnan(none.timing.median_s));
}

// Half of the peak in 2 s: the same work in less than 1 / 1.05 s is beyond it.
TEST(Validate, AblationsBeyondThePeakAreFailedMeasurements) {
  for (const auto part : {&AblationsRecord::full_s, &AblationsRecord::compute_only_s,
                          &AblationsRecord::serialised_s, &AblationsRecord::single_attend_s}) {
    PointRecord r = full_record();
    r.work.share_of_peak = 0.5;
    r.timing.median_s = 2;
    r.ablations = {.full_s = 2, .compute_only_s = 1.5, .communication_only_s = 1e-6};
    (*r.ablations).*part = 0.96;
    EXPECT_TRUE(validate_record(r)) << r.reason;
    (*r.ablations).*part = 0.94;
    PointRecord unknown = r, simulated = r;
    EXPECT_FALSE(validate_record(r));
    EXPECT_EQ(r.status, PointStatus::kError);
    EXPECT_THAT(r.reason, HasSubstr("failed measurement"));
    EXPECT_THAT(r.reason, HasSubstr("= 0.94 s"));
    unknown.work.share_of_peak = kNotMeasured;
    EXPECT_TRUE(validate_record(unknown)) << unknown.reason;
    simulated.source = Source::kSimulated;
    EXPECT_TRUE(validate_record(simulated)) << simulated.reason;
  }
}

TEST(Validate, RefusesContradictions) {
  const auto judged = [](auto change) {
    PointRecord r = full_record();
    change(r);
    const bool consistent = validate_record(r);
    return std::tuple(consistent, r.status, r.reason);
  };
  EXPECT_EQ(std::get<0>(judged([](PointRecord&) {})), true);
  EXPECT_THAT(judged([](PointRecord& r) { r.timing.median_s = NAN; }),
              testing::FieldsAre(false, PointStatus::kError, HasSubstr("without a median")));
  EXPECT_THAT(judged([](PointRecord& r) { r.timing.median_s = -1; }),
              testing::FieldsAre(false, PointStatus::kError, HasSubstr("negative")));
  EXPECT_THAT(
      judged([](PointRecord& r) { r.work.share_of_peak = 1.06; }),
      testing::FieldsAre(false, PointStatus::kError, HasSubstr("faster than the machine's peak")));
  EXPECT_EQ(std::get<0>(judged([](PointRecord& r) {
              r.work.share_of_peak = 1.04;
              r.ablations.reset();
            })),
            true);
  EXPECT_THAT(judged([](PointRecord& r) { r.comm.counted_bytes_per_rank = 99; }),
              testing::FieldsAre(false, PointStatus::kCheckFailed,
                                 HasSubstr("counted 99 bytes per rank, predicted 100")));
  EXPECT_THAT(judged([](PointRecord& r) { r.comm.counted_messages_per_rank = 5; }),
              testing::FieldsAre(false, PointStatus::kCheckFailed, HasSubstr("messages")));
  EXPECT_EQ(std::get<0>(judged([](PointRecord& r) { r.comm.counted_bytes_per_rank.reset(); })),
            true);
  EXPECT_EQ(std::get<0>(judged([](PointRecord& r) {  // modelled bytes count as well
              r.comm.counted_bytes_per_rank = 40;
              r.comm.modelled_bytes_per_rank = 60;
            })),
            true);
  EXPECT_THAT(judged([](PointRecord& r) { r.comm.closed_form_bytes_per_rank = 101; }),
              testing::FieldsAre(false, PointStatus::kCheckFailed, HasSubstr("closed form")));
  EXPECT_THAT(judged([](PointRecord& r) { r.check.status = "fail"; }),
              testing::FieldsAre(false, PointStatus::kCheckFailed, HasSubstr("wrong")));
  EXPECT_THAT(judged([](PointRecord& r) { r.status = PointStatus::kOom; }),
              testing::FieldsAre(false, PointStatus::kOom, HasSubstr("without a reason")));
}

}  // namespace
}  // namespace longnet
