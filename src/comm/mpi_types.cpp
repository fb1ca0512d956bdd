// Element types, operations and errors of MPI.
#include "comm/mpi_support.hpp"
#include "trireme/base/bf16.hpp"
#include "trireme/comm/comm.hpp"
#include "trireme/trace/activity.hpp"

namespace trireme::comm {

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char message[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, message, &length);
  int kind = MPI_SUCCESS;
  MPI_Error_class(code, &kind);
  std::string at = trace::standing().call;
  if (!at.empty()) at = "; this rank is in " + at;
  if (kind == MPI_ERR_TRUNCATE)
    at = " (the ranks called different collectives, or one with different amounts" + at + ")";
  throw InternalError(base::text(
      "MPI: ", call, " failed: ", std::string(message, static_cast<size_t>(length)), at));
}

size_t size_of(DType type) {
  switch (type) {
    case DType::u8: return 1;
    case DType::bf16: return 2;
    case DType::i32:
    case DType::f32: return 4;
    case DType::i64:
    case DType::u64:
    case DType::f64: return 8;
  }
  throw InternalError("unknown element type");
}

MPI_Datatype to_mpi(DType type) {
  switch (type) {
    case DType::u8: return MPI_UINT8_T;  // MPI_BYTE has no sums
    case DType::bf16: return MPI_UINT16_T;
    case DType::i32: return MPI_INT32_T;
    case DType::i64: return MPI_INT64_T;
    case DType::u64: return MPI_UINT64_T;
    case DType::f32: return MPI_FLOAT;
    case DType::f64: return MPI_DOUBLE;
  }
  throw InternalError("unknown element type");
}

namespace {

void sum_bf16(void* in, void* inout, int* count, MPI_Datatype*) {
  const auto* a = static_cast<const uint16_t*>(in);
  auto* b = static_cast<uint16_t*>(inout);
  for (int i = 0; i < *count; ++i)
    b[i] = base::float_to_bf16(base::bf16_to_float(a[i]) + base::bf16_to_float(b[i]));
}

MPI_Op bf16_sum() {
  static const MPI_Op op = [] {  // lives until MPI_Finalize, like MPI's own operations
    MPI_Op made = MPI_OP_NULL;
    TRIREME_MPI(MPI_Op_create(&sum_bf16, 1, &made));
    return made;
  }();
  return op;
}

}  // namespace

MPI_Op to_mpi(Op op, DType type) {
  VALIDATE(type != DType::bf16 || op == Op::sum, ExitCode::internal, "bf16 has sums only");
  switch (op) {
    case Op::sum: return type == DType::bf16 ? bf16_sum() : MPI_SUM;
    case Op::min: return MPI_MIN;
    case Op::max: return MPI_MAX;
    case Op::bit_or: return MPI_BOR;
  }
  throw InternalError("unknown reduction");
}

}  // namespace trireme::comm
