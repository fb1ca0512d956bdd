#include "trireme/model/gguf.hpp"

#include <algorithm>
#include <cstring>

#include "gguf_parser.hpp"
#include "trireme/base/error.hpp"
#include "trireme/base/foreign_file.hpp"

namespace trireme::model {
namespace {

// How many heads the rows of this tensor are permuted in.
int64_t heads_of_permuted(const std::string& name, const config::ModelShape& shape) {
  if (!config::traits(shape.architecture).gguf_interleaves) return 0;
  if (name.find(".self_attn.q_proj.") != std::string::npos) return shape.heads;
  if (name.find(".self_attn.k_proj.") != std::string::npos) return shape.kv_heads;
  return 0;
}

// Hugging Face keeps the two halves of a head one after the other, llama.cpp interleaves them: row
// (h, s, i) of [heads, 2, hd / 2] is stored as row (h, i, s).
int64_t stored_row(int64_t row, int64_t rows, int64_t heads) {
  if (heads == 0) return row;
  const int64_t head_dim = rows / heads;
  const int64_t within = row % head_dim;
  return row - within + within % (head_dim / 2) * 2 + within / (head_dim / 2);
}

}  // namespace

GgufFile::GgufFile(const std::filesystem::path& path) : file_(path) {
  const std::string_view first(reinterpret_cast<const char*>(file_.bytes().data()),
                               std::min(file_.bytes().size(), base::foreign_file_bytes));
  if (!first.starts_with("GGUF")) base::refuse_foreign_file(first, path, base::Expected::weights);
  GgufHeader header = parse_gguf(file_.bytes(), path.string());
  version_ = header.version;
  shape_ = gguf_shape(header, file_.bytes(), path.string());
  tokenizer_ = gguf_tokenizer(header, path.string());
  for (auto& info : header.tensors) {
    if (info.name == "rope_freqs.weight") continue;  // part of the shape now
    const std::string name = hugging_face_name(info.name);
    Tensor tensor{
        {name, std::move(info.shape)}, info.type, info.begin, heads_of_permuted(name, shape_)};
    VALIDATE(
        tensor.permuted_heads == 0 || tensor.spec.rows() == tensor.permuted_heads * shape_.head_dim,
        ExitCode::bad_data, path.string(), ": ", info.name, " has ", tensor.spec.rows(),
        " rows, not ", tensor.permuted_heads, " heads of ", shape_.head_dim);
    VALIDATE(tensor.permuted_heads == 0 || tensor.spec.shape.size() == 2 ||
                 find_gguf_type(tensor.type)->elements == 1,
             ExitCode::bad_data, path.string(), ": the bias ", info.name, " is quantised");
    VALIDATE(tensors_.emplace(name, std::move(tensor)).second, ExitCode::bad_data, path.string(),
             ": two tensors become ", name);
  }
  metadata_ = std::move(header.metadata);
}

GgufFile::~GgufFile() = default;

const GgufFile::Tensor& GgufFile::tensor(std::string_view name) const {
  const auto found = tensors_.find(name);
  VALIDATE(found != tensors_.end(), ExitCode::bad_data, file_.path().string(), " has no tensor '",
           name, "'");
  return found->second;
}

std::vector<std::string> GgufFile::names() const {
  std::vector<std::string> out;
  for (const auto& [name, tensor] : tensors_) out.push_back(name);
  return out;
}

bool GgufFile::contains(std::string_view name) const {
  return tensors_.find(name) != tensors_.end();
}
const base::TensorSpec& GgufFile::spec(std::string_view name) const { return tensor(name).spec; }
std::string_view GgufFile::type_name(std::string_view name) const {
  return find_gguf_type(tensor(name).type)->name;
}

void GgufFile::read(std::string_view name, const base::Block& block, float* out) const {
  const Tensor& from = tensor(name);
  const GgufType& format = *find_gguf_type(from.type);
  // Blocks run along the fastest dimension: of a vector that is dimension 0, so it is one row of
  // that many columns. (A permuted bias has blocks of one element, see the constructor, and is read
  // row by row.)
  const bool vector = from.spec.shape.size() <= 1 && from.permuted_heads == 0;
  const int64_t columns = vector ? from.spec.elements() : from.spec.columns();
  const base::Block area = vector ? base::Block{0, 1, block.row, block.rows} : block;
  const bool inside = area.row >= 0 && area.column >= 0 && area.rows >= 0 && area.columns >= 0 &&
                      area.row + area.rows <= (vector ? 1 : from.spec.rows()) &&
                      area.column + area.columns <= columns;
  if (!inside) throw InternalError(base::text("a block outside of ", name));
  if (block.empty()) return;

  const auto size = static_cast<int64_t>(format.elements);
  const int64_t first = area.column / size;
  const int64_t last = (area.column + area.columns + size - 1) / size;
  const uint64_t bytes = static_cast<uint64_t>(last - first) * format.bytes;  // of a row
  uint64_t begin = file_.bytes().size(), end = 0;                             // of what is read
  std::vector<float> unpacked(static_cast<size_t>((last - first) * size));
  for (int64_t row = 0; row < area.rows; ++row) {
    const int64_t source =
        vector ? 0 : stored_row(area.row + row, from.spec.rows(), from.permuted_heads);
    const uint64_t offset =
        from.begin + static_cast<uint64_t>(source * (columns / size) + first) * format.bytes;
    dequantise(from.type, file_.bytes().data() + offset, static_cast<uint64_t>(last - first),
               unpacked.data());
    begin = std::min(begin, offset);
    end = std::max(end, offset + bytes);
    std::copy_n(unpacked.data() + (area.column - first * size), area.columns,
                out + row * area.columns);
  }
  file_.let_go(file_.bytes().subspan(begin, end - begin));
  count_bytes(static_cast<uint64_t>(area.rows * (last - first)) * format.bytes);
}

}  // namespace trireme::model
