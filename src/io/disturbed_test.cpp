#include "io/disturbed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace longnet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

PointRecord quiet(const std::string& id) {
  PointRecord r;
  r.id = id;
  r.params.ranks = 2;
  r.per_rank = {{.rank = 0, .median_s = 1, .pairs = 900},
                {.rank = 1, .median_s = 1, .pairs = 1000}};
  r.timing.samples_s = {1, 1.4, 1.2};
  r.timing.median_s = 1.2;
  r.ablations = AblationsRecord{.full_s = 1.4, .single_attend_s = 1};
  r.metrics = {{"usable_cores", 2}, {"busy_share", 0.1}};
  return r;
}

TEST(Disturbed, AQuietRunHasNone) {
  EXPECT_THAT(disturbed_points({quiet("a"), quiet("b")}), IsEmpty());
}

TEST(Disturbed, EachKindOfEvidenceIsNamed) {
  PointRecord busy = quiet("busy"), apart = quiet("apart"), again = quiet("again"),
              slow = quiet("slow"), peak = quiet("peak"), over = quiet("over");
  peak.work.peak_flops_per_s = over.work.peak_flops_per_s = 1e9;  // one without a share of it
  over.work.share_of_peak = 1.01;
  busy.metrics["busy_share"] = 0.31;
  apart.timing.samples_s[1] = 1.8;
  again.ablations->full_s = 0.8;
  slow.ablations->single_attend_s = 1.2;
  EXPECT_THAT(
      disturbed_points({busy, apart, again, over, peak, slow, quiet("quiet")}),
      ElementsAre(
          Pair("again", "the full step, repeated by the ablations, took 0.67 times as long"),
          Pair("apart", "samples are 1.8 times apart"),
          Pair("busy", "other programs used 31 % of the cores"),
          Pair("over", "the cores' peak beside the samples was lower than the samples' own rate"),
          Pair("peak", "the cores' peak beside the samples was lower than the samples' own rate"),
          Pair("slow", "its pairs as a single attend took 1.2 times as long as those of busy")));
  slow.per_rank[1].pairs = 1001;  // other work
  EXPECT_THAT(disturbed_points({slow, quiet("quiet")}), IsEmpty());
}

TEST(Disturbed, WhatHasNoClockOrCoresOfItsOwnIsLeftOut) {
  PointRecord modelled = quiet("a"), crowded = quiet("b"), failed = quiet("c"), shared = quiet("d");
  for (PointRecord* r : {&modelled, &crowded, &failed, &shared}) r->timing.samples_s[1] = 9;
  modelled.source = Source::kSimulated;
  crowded.params.ranks = 8;  // on two cores
  failed.status = PointStatus::kCheckFailed;
  shared.metrics = {{"devices", 1}, {"busy_share", 0.5}};
  EXPECT_THAT(disturbed_points({modelled, crowded, failed, shared}), IsEmpty());
  crowded.params.mode = Mode::kVirtual;  // one after the other
  EXPECT_EQ(disturbed_points({crowded}).size(), 1u);
  shared.metrics["devices"] = 2;  // a GPU each: samples apart, beside a busy host
  EXPECT_THAT(disturbed_points({shared}),
              ElementsAre(Pair("d", "other programs used 50 % of the cores")));
}

}  // namespace
}  // namespace longnet
