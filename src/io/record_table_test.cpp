#include "io/record_table.h"

#include <gmock/gmock.h>

#include <sstream>

namespace longnet {
namespace {

TEST(RecordTable, AxesHaveColumns) {
  PointRecord r;
  r.params.algorithm = "ring";
  r.params.ranks = 4;
  r.params.problem.seq_len = 8192;
  std::ostringstream out;
  Table<PointRecord> table(record_columns(), {.format = TableFormat::kCsv, .out = &out});
  table.add(r);
  EXPECT_EQ(out.str().substr(0, 60),
            "id,status,source,algorithm,kernel,ranks,seq_len,batch,median");
  EXPECT_NE(out.str().find(",ring,cpu,4,8192,1,"), std::string::npos) << out.str();
  const ColumnHead head = column_of(*find_axis("seq_len"));
  EXPECT_EQ(head.shown, Shown::kTokens);
  EXPECT_EQ(column_of(*find_axis("kernel")).priority, 4);
}

TEST(RecordTable, ConstantsAreColumnsOfOneValue) {
  std::vector<Point> points(2, Point{.params = standard_params()});
  points[0].params.problem.seq_len = points[1].params.problem.seq_len = 8192;
  points[1].params.ranks = 2;
  for (Point& point : points) point.params.problem.head_dim = 128;
  EXPECT_EQ(constants_of(points).text, "algorithm dilated, seq_len 8K, batch 1, d=128");
  EXPECT_TRUE(constants_of(points).columns.contains("options"));
  points[1].params.problem.causal = true;
  const Constants same = constants_of(points);
  EXPECT_EQ(same.columns, std::set<std::string>({"algorithm", "batch", "seq_len"}));
  EXPECT_EQ(shown_options(points[0].params, same.options), "");
  EXPECT_EQ(shown_options(points[1].params, same.options), "causal");
  points.pop_back();
  EXPECT_TRUE(constants_of(points).columns.empty());
}

TEST(RecordTable, AForwardIsNamedBesideOtherPasses) {
  std::vector<Point> points(3, Point{.params = standard_params()});
  points[0].params.options.keep_gathered = true;
  const auto options = [&] { return constants_of(points).options; };
  EXPECT_TRUE(options().contains(kForwardWord));
  EXPECT_EQ(constants_of(points).text.find(kForwardWord), std::string::npos);
  EXPECT_EQ(shown_options(points[0].params, options()), "rows kept");
  EXPECT_EQ(shown_options(points[0].params), "rows kept");
  points[1].params.pass = Pass::kBackward;
  EXPECT_EQ(shown_options(points[0].params, options()), "rows kept forward");
  EXPECT_EQ(shown_options(points[1].params, options()), "backward");
  EXPECT_EQ(shown_options(points[2].params, options()), "forward");
  points.resize(1);
  EXPECT_EQ(shown_options(points[0].params, options()), "rows kept");
}

TEST(RecordTable, WidestCellsAreThoseOfAxesAndOptions) {
  std::vector<Point> points(2, Point{.params = standard_params()});
  points[0].params.algorithm = "bidirectional_ring";
  points[1].params.pass = Pass::kForwardBackward;
  points[1].params.problem.causal = true;
  const auto widest = widest_cells(points, {"causal"});
  EXPECT_EQ(widest.at("algorithm"), 18);
  EXPECT_EQ(widest.at("options"), 16);
  EXPECT_FALSE(widest.contains("pass"));
}

TEST(RecordTable, RatiosAreShownWhereClustersAreCompared) {
  std::vector<Point> points(2, Point{.params = standard_params()});
  points[0].params.cluster = points[1].params.cluster = "h100 bandwidth=0.5";
  EXPECT_FALSE(compares_clusters(points));
  points[0].params.cluster = "h100";
  EXPECT_TRUE(compares_clusters(points));
  PointRecord r;
  r.metrics["ratio_to_unchanged"] = 1.25;
  std::ostringstream out;
  Table<PointRecord> table(record_columns({}, compares_clusters(points)), {.out = &out});
  table.add(r);
  EXPECT_NE(out.str().find("x1.25"), std::string::npos) << out.str();
}

TEST(RecordTable, FitsIntoAHundredColumns) {
  PointRecord r;
  r.id = "0123abcd";
  r.params.algorithm = "query_gather";
  r.params.ranks = 4096;
  r.params.problem.seq_len = int64_t{1} << 30;
  r.params.problem.batch = 131072;
  r.timing.median_s = 1234;
  r.work.share_of_peak = 0.123456;
  r.comm.counted_bytes_per_rank = int64_t{270582939648};
  r.check.rel_l2_error = 3.7e-7;
  for (const PointStatus status : {PointStatus::kOk, PointStatus::kSkippedUnsupported}) {
    r.status = status;
    r.reason = status == PointStatus::kOk ? "" : "needs 4096 ranks, there are 2";
    std::ostringstream out;
    Table<PointRecord> table(record_columns(), {.out = &out});
    table.add(r);
    EXPECT_NE(out.str().find("252 GiB"), std::string::npos);
    EXPECT_NE(out.str().find("12.3 %"), std::string::npos);
    std::istringstream lines(out.str());
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 100U) << line;
  }
}

TEST(RecordTable, ExportHoldsEveryValueOnce) {
  PointRecord a, b;
  a.id = "a", b.id = "b";
  a.timing.median_s = 2;
  a.timing.samples_s = {1, 2, 3};
  b.metrics["device_power_w"] = 600;
  const std::vector<FlatRecord> all{flat_record(to_json(a)), flat_record(to_json(b))};
  for (const bool with_lists : {false, true}) {
    std::ostringstream out;
    Table<FlatRecord> table(flat_columns(all, with_lists),
                            {.format = TableFormat::kJsonLines, .out = &out});
    for (const FlatRecord& record : all) table.add(record);
    std::istringstream lines(out.str());
    std::string first, second;
    std::getline(lines, first), std::getline(lines, second);
    const JsonNode row = parse_json(first, "test"), other = parse_json(second, "test");
    EXPECT_EQ(row.real("timing.median_s"), 2);
    EXPECT_TRUE(row.find("metrics.device_power_w")->is_null());
    EXPECT_EQ(other.real("metrics.device_power_w"), 600);
    EXPECT_EQ(row.find("timing.samples_s") != nullptr, with_lists);
    EXPECT_EQ(row.keys, other.keys);
  }
}

// Notes behind a row say what its numbers leave out.
TEST(RecordTable, NotesTellNumbersThatAreNotAllMeasured) {
  PointRecord r;
  EXPECT_EQ(note_of(r), "");
  r.source = Source::kReplayed;
  EXPECT_EQ(note_of(r), "replayed");
  r.source = Source::kExtrapolated;
  EXPECT_EQ(note_of(r), "extrapolated");
  r.metrics["measured_share"] = 0.25;
  r.check.strata = 8, r.check.strata_left_out = 3;
  r.reason = "why";
  EXPECT_EQ(note_of(r), "extrapolated from 25 %; 3 of 8 strata beyond check.max_queries; why");
  PointRecord guessed;
  guessed.metrics[kBeyondTable] = 1;
  guessed.check.gradients.emplace();
  guessed.check.gradients->strata = 4, guessed.check.gradients->strata_left_out = 1;
  guessed.memory.resident_growth_bytes = 3 << 20;
  guessed.memory.resident_difference = 0.5;
  EXPECT_EQ(
      note_of(guessed),
      "1 of 4 strata of gradients without a checked key; resident memory grew by 3 MiB, 50 % more "
      "than the buffers; more keys than the kernel table has");
}

}  // namespace
}  // namespace longnet
