#include "checkpoint/index.hpp"

#include "checkpoint/manifest.hpp"
#include "fixture.hpp"

namespace trireme::checkpoint {
namespace {

std::vector<IndexEntry> sample_entries() {
  std::vector<IndexEntry> entries(2);
  entries[0].path = "/a";
  entries[0].type = StoredType::f32;
  entries[0].shape = {100, 7};
  entries[0].offset = 4096;
  entries[0].slabs = {{{0, 60, 0, 7}, 0}, {{60, 40, 0, 7}, 1}};
  entries[0].digests = {{1, 2}, {3, 4}};
  entries[1].path = "/state";
  entries[1].type = StoredType::text;
  entries[1].shape = {11};
  entries[1].slabs = {{{0, 11, 0, 1}, 0}};
  entries[1].digests = {{5, 6}};
  return entries;
}

TEST(Index, PiecesCoverASlabOnce) {
  for (const int64_t rows : {1, 3, 1000, 70001}) {
    for (const int64_t columns : {1, 96, 5000}) {
      const base::Block slab{5, rows, 2, columns};
      const Pieces pieces(slab, 4);
      int64_t next = slab.row;
      for (int64_t p = 0; p < pieces.count(); ++p) {
        const base::Block block = pieces.block(p);
        EXPECT_EQ(block.row, next);
        EXPECT_EQ(pieces.first_with(block.row), p);
        EXPECT_EQ(pieces.first_with(block.row + block.rows - 1), p);
        EXPECT_GT(block.rows, 0);
        EXPECT_LE(block.elements() * 4, std::max<int64_t>(4 << 20, columns * 4));
        next += block.rows;
      }
      EXPECT_EQ(next, slab.row + rows);
    }
  }
  EXPECT_EQ(Pieces({}, 4).count(), 0);
}

TEST(Index, RoundTrip) {
  const std::string bytes = to_bytes(sample_entries());
  const auto read = index_from_bytes(bytes, "index");
  EXPECT_EQ(to_bytes(read), bytes);
  EXPECT_EQ(read[0].slabs[1].first_digest, 1u);
}

// Found by fuzzing: no rows of more columns than an integer counts.
TEST(Index, ColumnsBeyondAnInteger) {
  IndexEntry entry = sample_entries().front();
  entry.shape = {0, int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_EQ(code_of([&] { static_cast<void>(entry.columns()); }), ExitCode::bad_data);
}

// Whatever the bytes, the answer is an error and no crash and no huge allocation.
TEST(Index, RefusesEveryTruncationAndSurvivesEveryFlip) {
  const std::string bytes = to_bytes(sample_entries());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(code_of([&] { index_from_bytes(std::string_view(bytes).substr(0, size), "index"); }),
              ExitCode::bad_data)
        << size;
  }
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string changed = bytes;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
    const ExitCode code = code_of([&] { index_from_bytes(changed, "index"); });
    EXPECT_TRUE(code == ExitCode::done || code == ExitCode::bad_data) << bit;
  }
}

TEST(Index, MetadataIsWhatNoDatasetOwns) {
  const auto entries = sample_entries();
  const auto ranges = metadata_ranges({entries[0]}, 10000);
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].end, 4096);
  EXPECT_EQ(ranges[1].begin, 4096 + 2800);
  EXPECT_EQ(code_of([&] { metadata_ranges({entries[0]}, 5000); }), ExitCode::bad_data);
  auto overlapping = std::vector{entries[0], entries[0]};
  overlapping[1].offset += 2799;
  EXPECT_EQ(code_of([&] { metadata_ranges(overlapping, 100000); }), ExitCode::bad_data);
}

TEST(Manifest, RefusesEveryChange) {
  FullManifest manifest;
  manifest.format = format_version;
  manifest.step = 120;
  manifest.world_size = 4;
  manifest.version = "1.0";
  manifest.config_digest = "abc";
  manifest.metadata_digest = "00";
  manifest.index_digest = "11";
  const std::string text = to_json(manifest);
  EXPECT_EQ(manifest_from_json(text, "m").step, 120);
  for (size_t i = 0; i < text.size(); ++i) {
    for (const char replacement : {' ', '0', '"', '}'}) {
      if (text[i] == replacement) continue;
      std::string changed = text;
      changed[i] = replacement;
      EXPECT_EQ(code_of([&] { manifest_from_json(changed, "m"); }), ExitCode::bad_data)
          << "byte " << i << " as " << replacement;
    }
    EXPECT_EQ(code_of([&] { manifest_from_json(text.substr(0, i), "m"); }), ExitCode::bad_data)
        << i;
  }
  EXPECT_EQ(code_of([&] { manifest_from_json(std::string(100000, '['), "m"); }),
            ExitCode::bad_data);
}

TEST(Manifest, OnlyStepFoldersAreCheckpoints) {
  EXPECT_EQ(step_of("step-000120"), 120);
  EXPECT_EQ(step_of("step-1234567"), 1234567);
  for (const char* name : {"step-", "step-12", "step-00012a", ".step-000120.1.tmp",
                           "step-000120.old", "latest", "step--00001"}) {
    EXPECT_EQ(step_of(name), -1) << name;
  }
  EXPECT_EQ(folder_name(1234567), "step-1234567");
}

}  // namespace
}  // namespace trireme::checkpoint
