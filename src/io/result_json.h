// Functions that the writer and the reader of results share.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "io/result.h"

namespace longnet {

std::string read_text_file(const std::string& path);  // throws UsageError
std::string manifest_to_json(const Result& result);   // run.json: everything but points and summary
std::string timelines_to_lines(const Result& result);  // "" when no point has a timeline

Result read_manifest(const std::string& path);  // a run.json: no points

// The whole lines of a points.jsonl; a torn last line is left out, and good_bytes ends before it.
struct PointLines {
  std::vector<PointRecord> points;
  int64_t good_bytes = 0;
};
PointLines read_point_lines(const std::string& path);

// Replaces the record with the same id, else appends.
void put_record(std::vector<PointRecord>& records, PointRecord record);

}  // namespace longnet
