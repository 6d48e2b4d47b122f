// One launch computes one token of a GPT for one to eight sequences. Every multiprocessor runs one block for the whole
// token. One warp streams the block's rows of every matrix through a ring in shared memory, in the order of the model,
// waiting for nothing but room: the memory is busy also while blocks wait for each other. The other warps multiply with
// tensor cores, normalise and attend.
//
// Blocks exchange vectors through memory, without a barrier: each value is written together with a tag, which counts
// launches and layers, in one store of eight bytes, and whoever needs the value reads it until the tag is there. A value
// is written again only after everybody has read it, because its writer then depends on something of every reader.
//
// The sizes are macros (persistent.py). Matrices are (rows, columns) as nn.Linear keeps them, in bfloat16; sums, norms,
// softmax and the residual stream are float32.

typedef unsigned short bf16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define CONSUMERS (WARPS * 32)
#define STRIDE (CHUNK + 8)  // eight more values a row, so that eight rows lie in different banks
#define QKV ((HEADS + 2 * KV_HEADS) * HEAD)
#define ATTENDED (HEADS * HEAD)
#define LANES (HEAD / 8)  // lanes that share one key, eight channels each
#define SLOTS_A_WARP (32 / LANES)

struct Layer {
    const bf16 *norm1, *shift1, *qkv, *qkv_bias, *q_norm, *k_norm, *out, *out_bias;
    const bf16 *norm2, *shift2, *gate, *gate_bias, *up, *up_bias, *down, *down_bias;
};

struct Model {
    Layer layers[LAYERS];
    const bf16 *embed, *positions, *norm, *shift, *head, *head_bias;
    const float2* rotation;  // (slots, PAIRS) cosines and sines
};

struct State {
    const i64* tokens;
    const bool* active;
    i64* used;    // tokens each sequence holds: its new one has this position
    bf16* keys;   // (layers, B, KV_HEADS, SLOTS, HEAD)
    bf16* values;
    i64* index;   // (B, SLOTS)
    float* coords;
    float* logits;  // (B, VOCAB)
    u64* launches;
    // exchanged, each value with its tag in the upper half
    u64* x;         // (B, D)
    u64* qkv;       // (B, QKV)
    u64* parts;     // (B, HEADS, SPLITS, HEAD)
    u64* weights;   // (B, HEADS, SPLITS)
    u64* hidden;    // (B, HIDDEN / 2), two values of bfloat16 each
};

struct Shared {
    bf16* ring;
    bf16* v;        // the vector of each sequence that a matrix is multiplied with
    float* sums;    // of each warp, for a tile of 16 rows
    float* small;
    bf16* given;    // the norms and biases of the four products of a block of the model
    float* x;       // the residual stream of this block's rows
    int* now;       // the position of each sequence's new token
    u32 full, empty;  // shared addresses of the mbarriers of the ring, and after them of `given`
};

__device__ __forceinline__ float wide(bf16 x) { return __uint_as_float((u32)x << 16); }
__device__ __forceinline__ float low(u32 x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float high(u32 x) { return __uint_as_float(x & 0xffff0000u); }
__device__ __forceinline__ u32 pack(float a, float b) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(a));
    return r;
}
__device__ __forceinline__ bf16 narrow(float a) { return (bf16)(pack(a, 0.f) & 0xffffu); }
__device__ __forceinline__ u32 address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n.reg .pred p;\nagain: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra done;\nbra again;\ndone:\n}"
        ::"r"(barrier), "r"(parity) : "memory");
}
__device__ __forceinline__ void arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void together() { asm volatile("bar.sync 1, %0;" ::"n"(CONSUMERS) : "memory"); }

__device__ __forceinline__ float warp_sum(float x) {
    for (int i = 16; i; i >>= 1) x += __shfl_xor_sync(~0u, x, i);
    return x;
}

__device__ __forceinline__ void give(u64* p, u32 value, u32 tag) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"((u64)tag << 32 | value) : "memory");
}
__device__ __forceinline__ void give(u64* p, float value, u32 tag) { give(p, __float_as_uint(value), tag); }
// COUNT runs of four values, the first at p and each STEP further; those from `end` on are not read
template <int COUNT, int STEP>
__device__ __forceinline__ void take(const u64* p, const u64* end, u32 tag, u32 (&out)[COUNT][4]) {
    bool ready;
    do {
        ready = true;
        u64 word[COUNT][4];
        #pragma unroll
        for (int j = 0; j < COUNT; j++)
            if (p + j * STEP < end) {
                #pragma unroll
                for (int i = 0; i < 4; i += 2)
                    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                                 : "=l"(word[j][i]), "=l"(word[j][i + 1]) : "l"(p + j * STEP + i) : "memory");
            }
        #pragma unroll
        for (int j = 0; j < COUNT; j++)
            if (p + j * STEP < end)
                #pragma unroll
                for (int i = 0; i < 4; i++) {
                    ready &= (u32)(word[j][i] >> 32) == tag;
                    out[j][i] = (u32)word[j][i];
                }
    } while (!ready);
}
__device__ __forceinline__ float take(const u64* p, u32 tag) {
    u64 word;
    do asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(p) : "memory");
    while ((u32)(word >> 32) != tag);
    return __uint_as_float((u32)word);
}

// ---------------------------------------------------------------------------------------------------- rows and tiles
// This block's rows of a matrix. It walks through them in tiles of 16 rows, each in chunks of columns; a gated MLP takes
// eight rows of the gate and the same eight of the other matrix in a tile.
struct Walk {
    int begin, end, step;
    __device__ Walk(int rows, bool gated, int unit) {
        begin = rows / unit * blockIdx.x / GRID * unit, end = rows / unit * (blockIdx.x + 1) / GRID * unit;
        step = gated ? 8 : 16;
    }
};

struct Ring {
    u32 stage, parity, sent;
    __device__ void next() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
};

// A stage of the ring holds eight rows.
__device__ __forceinline__ void stream(const Shared& s, Ring& ring, const bf16* first, const bf16* second, int rows,
                                       int columns, int unit) {
    Walk walk(rows, second != nullptr, unit);
    int lane = threadIdx.x & 31;
    for (int tile = walk.begin; tile < walk.end; tile += walk.step)
        for (int k = 0; k < columns; k += CHUNK)
            for (int half = 0; half < 2; half++) {
                int row = tile + (second ? 0 : half * 8), count = min(8, walk.end - row);
                if (count <= 0) break;
                const bf16* from = (second && half ? second : first) + (i64)(row + lane) * columns + k;
                u32 bytes = 2 * min(CHUNK, columns - k), full = s.full + 8 * ring.stage;
                wait(s.empty + 8 * ring.stage, ring.parity ^ 1);
                // more requests under way than saturate the memory only make all others of this multiprocessor wait
                if (FLIGHT < STAGES && ring.sent++ >= FLIGHT)
                    wait(s.full + 8 * ((ring.stage + STAGES - FLIGHT) % STAGES), ring.stage >= FLIGHT ? ring.parity : ring.parity ^ 1);
                if (lane == 0)
                    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full), "r"(count * bytes)
                                 : "memory");
                __syncwarp();
                if (lane < count)
                    asm volatile(
                        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                            address(s.ring + (ring.stage * 8 + lane) * STRIDE)),
                        "l"(from), "r"(bytes), "r"(full) : "memory");
                ring.next();
            }
}

__device__ __forceinline__ void multiply_add(float* c, const u32* a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// This block's rows of a matrix times v, eight sequences at most. `put(b, row, place, sum, other)` takes each sum, in
// whole warps (`row` is −1 where there is none); `place` counts this block's rows, and `other` is the sum of a gated
// MLP's second matrix.
template <bool GATES, class Put>
__device__ __forceinline__ void product(const Shared& s, Ring& ring, int rows, int columns, int unit, Put put) {
    Walk walk(rows, GATES, unit);
    int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, turn = 0;
    int sequence = lane >> 2, channel = (lane & 3) * 2;
    const bf16* v = s.v + sequence * (columns + 8) + channel;
    for (int tile = walk.begin; tile < walk.end; tile += walk.step, turn ^= 1) {
        bool both = GATES || walk.end - tile > 8;
        float even[4] = {}, odd[4] = {};
        for (int k = 0; k < columns; k += CHUNK) {
            int steps = min(CHUNK, columns - k) / 16;
            u32 stage = ring.stage, second = stage;
            wait(s.full + 8 * ring.stage, ring.parity);
            ring.next();
            if (both) {
                second = ring.stage;
                wait(s.full + 8 * ring.stage, ring.parity);
                ring.next();
            }
            u32 place = address(s.ring + ((lane & 8 ? second : stage) * 8 + (lane & 7)) * STRIDE + (lane >> 4) * 8);
            auto step = [&](float* sum, int i) {
                u32 a[4], b0 = 0, b1 = 0;
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                             : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(place + i * 32));
                if (sequence < B) {
                    b0 = *(const u32*)(v + k + i * 16);
                    b1 = *(const u32*)(v + k + i * 16 + 8);
                }
                multiply_add(sum, a, b0, b1);
            };
            int i = warp;
            for (; i + WARPS < steps; i += 2 * WARPS) step(even, i), step(odd, i + WARPS);
            if (i < steps) step(even, i);
            __syncwarp();
            if (lane == 0) {
                arrive(s.empty + 8 * stage);
                if (both) arrive(s.empty + 8 * second);
            }
        }
        float* sums = s.sums + (turn * WARPS + warp) * 16 * B;
        for (int i = 0; i < 4; i++) {
            int r = sequence + (i >> 1) * 8, c = channel + (i & 1);
            if (c < B) sums[r * B + c] = even[i] + odd[i];
        }
        together();
        if (warp * 32 < walk.step * B) {
            const int count = GATES ? 8 : 16;
            int row = tile + thread % count, b = thread / count;
            const float* all = s.sums + turn * WARPS * 16 * B + thread % count * B + b;
            bool mine = b < B && row < walk.end;
            float value = 0, other = 0;
            if (mine)
                for (int w = 0; w < WARPS; w++) {
                    value += all[w * 16 * B];
                    if (GATES) other += all[w * 16 * B + 8 * B];
                }
            put(b, mine ? row : -1, row - walk.begin, value, other);
        }
    }
}

// ------------------------------------------------------------------------------------------------ norms and biases
// What a product needs beside its matrix: a norm's gain and shift, and the biases of this block's rows. The streaming
// warp copies it ahead of the matrix. Copies begin at a multiple of eight values.
#define AT_MOST(rows) (((rows) + GRID - 1) / GRID + 24 & ~7)
#define QKV_GIVEN 0
#define OUT_GIVEN (QKV_GIVEN + 2 * D + AT_MOST(QKV))
#define UP_GIVEN (OUT_GIVEN + AT_MOST(D))
#define DOWN_GIVEN (UP_GIVEN + 2 * D + 2 * AT_MOST(HIDDEN))
#define GIVEN (DOWN_GIVEN + AT_MOST(D))

struct Given {
    bf16 *gain, *shift, *bias, *bias2;
    u32 full, empty;
    __device__ Given(const Shared& s, int which, int start, bool normed, int rows, int unit) {
        Walk walk(rows, false, unit);
        gain = s.given + start, shift = gain + D;
        bias = normed ? shift + D : gain;
        bias += walk.begin & 7, bias2 = bias + AT_MOST(rows);
        full = s.full + 16 * STAGES + 8 * which, empty = full + 32;
    }
};

__device__ __forceinline__ void copy(bf16* to, const bf16* from, int count, u32 full) {
    if (from)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(address(to)),
                     "l"(from), "r"(count * 2), "r"(full) : "memory");
}

__device__ __forceinline__ void send(const Given& given, int l, const bf16* gain, const bf16* shift, const bf16* bias,
                                     const bf16* bias2, int rows, int unit) {
    Walk walk(rows, false, unit);
    int first = walk.begin & ~7, count = (walk.end + 7 & ~7) - first;
    u32 bytes = 2 * ((gain ? D : 0) + (shift ? D : 0) + (bias ? count : 0) + (bias2 ? count : 0));
    wait(given.empty, l & 1 ^ 1);
    if ((threadIdx.x & 31) == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(given.full), "r"(bytes) : "memory");
        copy(given.gain, gain, D, given.full), copy(given.shift, shift, D, given.full);
        copy(given.bias - (walk.begin & 7), bias ? bias + first : bias, count, given.full);
        copy(given.bias2 - (walk.begin & 7), bias2 ? bias2 + first : bias2, count, given.full);
    }
    __syncwarp();
}

__device__ __forceinline__ void done(const Given& given) {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) arrive(given.empty);
}

// ------------------------------------------------------------------------------------------------------------- norms
// Groups of warps share the sequences. A thread has the same channels in every norm, four at a time.
#define GROUP (WARPS / NORMED)
#define EACH ((D / 4 + GROUP * 32 - 1) / (GROUP * 32))
__device__ __forceinline__ int channel_of(int j) { return (threadIdx.x % (GROUP * 32) + j * GROUP * 32) * 4; }

// The norm of each sequence's residual stream, into v; for the first block of the model (tag 0), of its embedding.
__device__ __forceinline__ void normalise(const Shared& s, const Model& m, const State& state, u32 tag,
                                          const Given& given) {
    int warp = threadIdx.x >> 5, b = warp / GROUP;
    float x[EACH][4];
    float total = 0, mean = 0, square = 0;
    if (b < B) {
        if (tag) {
            const int batch = EACH < 4 ? EACH : 4;
            const u64* from = state.x + b * D;
            #pragma unroll
            for (int j = 0; j < EACH; j += batch) {
                u32 got[batch][4];
                take<batch, GROUP * 128>(from + channel_of(j), from + D, tag, got);
                #pragma unroll
                for (int i = 0; i < batch * 4; i++)
                    if (j + i / 4 < EACH) x[j + i / 4][i % 4] = __uint_as_float(got[i / 4][i % 4]);
            }
        } else {
            #pragma unroll
            for (int j = 0; j < EACH; j++) {
                int i = channel_of(j);
                if (i < D) {
                    uint2 e = *(const uint2*)(m.embed + state.tokens[b] * D + i), p = make_uint2(0, 0);
                    if (LEARNED) p = *(const uint2*)(m.positions + (i64)s.now[b] * D + i);
                    x[j][0] = low(e.x) + low(p.x), x[j][1] = high(e.x) + high(p.x);
                    x[j][2] = low(e.y) + low(p.y), x[j][3] = high(e.y) + high(p.y);
                }
            }
        }
    }
    if (!RMS) {
        if (b < B)
            #pragma unroll
            for (int j = 0; j < EACH; j++)
                if (channel_of(j) < D) total += x[j][0] + x[j][1] + x[j][2] + x[j][3];
        total = warp_sum(total);
        if ((threadIdx.x & 31) == 0) s.small[warp] = total;
        together();
        if (b < B)
            for (int w = 0; w < GROUP; w++) mean += s.small[b * GROUP + w];
        mean /= D;
    }
    if (b < B)
        #pragma unroll
        for (int j = 0; j < EACH; j++)
            if (channel_of(j) < D)
                for (int i = 0; i < 4; i++) square += (x[j][i] - mean) * (x[j][i] - mean);
    square = warp_sum(square);
    if ((threadIdx.x & 31) == 0) s.small[WARPS + warp] = square;
    together();
    if (b < B) {
        float variance = 0;
        for (int w = 0; w < GROUP; w++) variance += s.small[WARPS + b * GROUP + w];
        float scale = rsqrtf(variance / D + EPS);
        #pragma unroll
        for (int j = 0; j < EACH; j++) {
            int i = channel_of(j);
            if (i < D) {
                uint2 g = *(const uint2*)(given.gain + i), h = SHIFTED ? *(const uint2*)(given.shift + i) : make_uint2(0, 0), y;
                y.x = pack((x[j][0] - mean) * scale * low(g.x) + low(h.x), (x[j][1] - mean) * scale * high(g.x) + high(h.x));
                y.y = pack((x[j][2] - mean) * scale * low(g.y) + low(h.y), (x[j][3] - mean) * scale * high(g.y) + high(h.y));
                *(uint2*)(s.v + b * (D + 8) + i) = y;
            }
        }
    }
    together();
}

__device__ __forceinline__ float activate(float x) {
#if ACTIVATION == 0
    return x * 0.5f * (1 + erff(x * 0.70710678118654752f));
#elif ACTIVATION == 1
    return x / (1 + __expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
#elif ACTIVATION == 2
    return fmaxf(x, 0.f);
#else
    return x / (1 + __expf(-x));
#endif
}

// --------------------------------------------------------------------------------------------------------- attention
// The channel that is rotated together with this one, and the rotated value of a channel and its partner.
__device__ __forceinline__ int partner_of(int i) {
    const int pairs = PAIRS > 0 ? PAIRS : 1;
    return ADJACENT ? i ^ 1 : i < pairs ? i + pairs : i - pairs;
}
__device__ __forceinline__ float turned(float own, float other, int i, const float2* rotation) {
    const int pairs = PAIRS > 0 ? PAIRS : 1;
    float2 turn = rotation[ADJACENT ? i / 2 : i % pairs];
    bool second = ADJACENT ? i & 1 : i >= pairs;
    return second ? own * turn.x + other * turn.y : own * turn.x - other * turn.y;
}

// How many blocks share the keys of one head, and which part of one sequence's keys a share is.
__device__ __forceinline__ int splits_of(const Shared& s) {
    int longest = 0;
    for (int b = 0; b < B; b++) longest = max(longest, s.now[b]);
    return min(SPLITS, longest / KEYS_A_SPLIT + 1);
}

struct Part {
    int split, head, b, from, to;
    __device__ Part(const Shared& s, int item, int splits) {
        split = item % splits, head = item / splits % HEADS, b = item / splits / HEADS;
        int now = s.now[b], begin = WINDOW ? max(0, now + 1 - WINDOW) : 0, each = (now - begin + splits - 1) / splits;
        from = begin + split * each, to = min(now, from + each);
    }
    __device__ i64 place(int l) const { return (((i64)l * B + b) * KV_HEADS + head / (HEADS / KV_HEADS)) * SLOTS; }
};

// The next keys and values of a part that a thread looks at. Those of the cache are known before the query is.
struct Keys {
    uint4 k[DEEP], v[DEEP];
    __device__ void load(const State& state, const Part& part, int l, int first) {
        int lane = threadIdx.x & 31;
        i64 place = part.place(l) * HEAD + (lane % LANES) * 8;
        #pragma unroll
        for (int d = 0; d < DEEP; d++) {
            int key = first + d * WARPS * SLOTS_A_WARP + lane / LANES;
            if (key < part.to) {
                k[d] = __ldcg((const uint4*)(state.keys + place + (i64)key * HEAD));
                v[d] = __ldcg((const uint4*)(state.values + place + (i64)key * HEAD));
            }
        }
    }
    __device__ void first(const State& state, const Part& part, int l) {
        load(state, part, l, part.from + (threadIdx.x >> 5) * SLOTS_A_WARP);
    }
};

// Keys and values of this block's parts, asked for a block of the model ahead by the streaming warp.
__device__ __forceinline__ void ahead(const Shared& s, const State& state, int l) {
    int splits = splits_of(s);
    for (int item = blockIdx.x; item < B * HEADS * splits && (threadIdx.x & 31) == 0; item += GRID) {
        Part part(s, item, splits);
        i64 first = (part.place(l) + part.from) * HEAD;
        u32 bytes = (part.to - part.from) * HEAD * 2;
        if (part.to > part.from) {
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(state.keys + first), "r"(bytes) : "memory");
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(state.values + first), "r"(bytes) : "memory");
        }
    }
    __syncwarp();
}

// One head of one sequence over a part of its keys: the mean of its values, and the logarithm of the sum of weights.
__device__ __forceinline__ void attend(const Shared& s, const Model& m, const State& state, u32 tag, int l,
                                       int splits, const Part& first, Keys& near) {
    int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    int group = lane / LANES, channel = (lane % LANES) * 8;
    float *raw = s.small, *most = raw + 3 * HEAD, *weight = most + WARPS;
    float* sums = weight + WARPS;
    for (int item = blockIdx.x; item < B * HEADS * splits; item += GRID) {
        const Part part = item == blockIdx.x ? first : Part(s, item, splits);
        int split = part.split, head = part.head, b = part.b, from = part.from, to = part.to, now = s.now[b];
        int kv = head / (HEADS / KV_HEADS);
        const float2* rotation = m.rotation + (i64)now * PAIRS;
        i64 place = part.place(l);
        for (int i = thread; i < 3 * HEAD; i += CONSUMERS) {
            int which = i / HEAD, c = i % HEAD;
            const u64* row = state.qkv + b * QKV + (which == 0 ? head : HEADS + (which - 1) * KV_HEADS + kv) * HEAD;
            float value = take(row + c, tag);
            if (QK_NORM && which < 2) {
                float square = 0;
                for (int j = 0; j < HEAD; j++) {
                    float other = take(row + j, tag);
                    square += other * other;
                }
                const bf16* gain = which == 0 ? m.layers[l].q_norm : m.layers[l].k_norm;
                float scale = rsqrtf(square / HEAD + EPS);
                value *= scale * wide(gain[c]);
                if (c < 2 * PAIRS) value = turned(value, take(row + partner_of(c), tag) * scale * wide(gain[partner_of(c)]), c, rotation);
            } else if (which < 2 && c < 2 * PAIRS)
                value = turned(value, take(row + partner_of(c), tag), c, rotation);
            raw[i] = which == 0 ? value * SCALE : wide(narrow(value));
            if (which && split == 0 && head % (HEADS / KV_HEADS) == 0)
                (which == 1 ? state.keys : state.values)[(place + (state.active[b] ? now : SLOTS - 1)) * HEAD + c] = narrow(value);
        }
        together();
        float q[8], sum[8] = {}, top = -1e30f, total = 0;
        for (int i = 0; i < 8; i++) q[i] = raw[channel + i];
        if (split == 0 && warp == 0) {  // the new token's own key, which no block reads from the cache
            float score = 0;
            for (int i = 0; i < 8; i++) score += q[i] * raw[HEAD + channel + i];
            for (int i = LANES / 2; i; i >>= 1) score += __shfl_xor_sync(~0u, score, i);
            if (group == 0) {
                top = score, total = 1;
                for (int i = 0; i < 8; i++) sum[i] = raw[2 * HEAD + channel + i];
            }
        }
        const int stride = WARPS * SLOTS_A_WARP;
        for (int j = from + warp * SLOTS_A_WARP; j < to; j += stride * DEEP) {  // the same in all lanes of a warp
            if (item != blockIdx.x || j >= from + stride) near.load(state, part, l, j);
            #pragma unroll
            for (int d = 0; d < DEEP; d++) {
                uint4 k = near.k[d], v = near.v[d];
                float score = q[0] * low(k.x) + q[1] * high(k.x) + q[2] * low(k.y) + q[3] * high(k.y) +
                              q[4] * low(k.z) + q[5] * high(k.z) + q[6] * low(k.w) + q[7] * high(k.w);
                for (int i = LANES / 2; i; i >>= 1) score += __shfl_xor_sync(~0u, score, i);
                if (j + d * stride + group < to) {
                    float higher = fmaxf(top, score), shrink = __expf(top - higher), p = __expf(score - higher);
                    total = total * shrink + p, top = higher;
                    sum[0] = sum[0] * shrink + p * low(v.x), sum[1] = sum[1] * shrink + p * high(v.x);
                    sum[2] = sum[2] * shrink + p * low(v.y), sum[3] = sum[3] * shrink + p * high(v.y);
                    sum[4] = sum[4] * shrink + p * low(v.z), sum[5] = sum[5] * shrink + p * high(v.z);
                    sum[6] = sum[6] * shrink + p * low(v.w), sum[7] = sum[7] * shrink + p * high(v.w);
                }
            }
        }
        for (int i = LANES; i < 32; i <<= 1) {
            float there = __shfl_xor_sync(~0u, top, i), higher = fmaxf(top, there);
            float mine = __expf(top - higher), theirs = __expf(there - higher);
            total = total * mine + __shfl_xor_sync(~0u, total, i) * theirs, top = higher;
            for (int c = 0; c < 8; c++) sum[c] = sum[c] * mine + __shfl_xor_sync(~0u, sum[c], i) * theirs;
        }
        if (group == 0)
            for (int c = 0; c < 8; c++) sums[warp * HEAD + channel + c] = sum[c];
        if (lane == 0) most[warp] = top, weight[warp] = total;
        together();
        if (thread < HEAD) {
            float higher = -1e30f, all = 0, z = 0;
            for (int w = 0; w < WARPS; w++) higher = fmaxf(higher, most[w]);
            for (int w = 0; w < WARPS; w++) {
                float share = __expf(most[w] - higher);
                all += weight[w] * share, z += sums[w * HEAD + thread] * share;
            }
            int out = (b * HEADS + head) * SPLITS + split;
            give(state.parts + out * HEAD + thread, all > 0 ? z / all : 0.f, tag);
            if (thread == 0) give(state.weights + out, all > 0 ? higher + __logf(all) : -1e30f, tag);
        }
        together();
    }
}

// The heads' outputs of each sequence, from their parts, into v.
__device__ __forceinline__ void join(const Shared& s, const State& state, u32 tag, int splits) {
    #pragma unroll
    for (int j = 0; j < (B * ATTENDED / 4 + CONSUMERS - 1) / CONSUMERS; j++) {
        int i = (threadIdx.x + j * CONSUMERS) * 4, b = i / ATTENDED, c = i % ATTENDED;
        if (b >= B) break;
        const u64* weights = state.weights + (b * HEADS + c / HEAD) * SPLITS;
        const u64* parts = state.parts + (b * HEADS + c / HEAD) * SPLITS * HEAD + c % HEAD;
        float z[4] = {}, top = -1e30f, total = 0;
        for (int p = 0; p < splits; p += 2) {  // two parts at a time
            u32 got[2][4];
            take<2, HEAD>(parts + p * HEAD, parts + (splits - 1) * HEAD + 1, tag, got);
            #pragma unroll
            for (int k = 0; k < 2; k++)
                if (p + k < splits) {
                    float weight = splits == 1 ? 0 : take(weights + p + k, tag), higher = fmaxf(top, weight);
                    float mine = __expf(top - higher), theirs = __expf(weight - higher);
                    for (int i = 0; i < 4; i++) z[i] = z[i] * mine + __uint_as_float(got[k][i]) * theirs;
                    total = total * mine + theirs, top = higher;
                }
        }
        *(uint2*)(s.v + b * (ATTENDED + 8) + c) =
            make_uint2(pack(z[0] / total, z[1] / total), pack(z[2] / total, z[3] / total));
    }
    together();
}

// The hidden values of each sequence, into v.
__device__ __forceinline__ void load_hidden(const Shared& s, const State& state, u32 tag) {
    const int runs = (B * HIDDEN / 8 + CONSUMERS - 1) / CONSUMERS, batch = runs < 4 ? runs : 4;
    const u64* end = state.hidden + B * HIDDEN / 2;
    #pragma unroll
    for (int j = 0; j < runs; j += batch) {
        u32 got[batch][4];
        int first = (threadIdx.x + j * CONSUMERS) * 4;
        take<batch, CONSUMERS * 4>(state.hidden + first, end, tag, got);
        #pragma unroll
        for (int k = 0; k < batch; k++) {
            int i = (first + k * CONSUMERS * 4) * 2;
            if (i < B * HIDDEN)
                *(uint4*)(s.v + i / HIDDEN * (HIDDEN + 8) + i % HIDDEN) = make_uint4(got[k][0], got[k][1], got[k][2], got[k][3]);
        }
    }
    together();
}

extern "C" __global__ void __launch_bounds__(CONSUMERS + 32, 1)
    decode(const __grid_constant__ Model m, const __grid_constant__ State state) {
    extern __shared__ __align__(128) unsigned char memory[];
    Shared s;
    s.ring = (bf16*)memory;
    s.v = s.ring + STAGES * 8 * STRIDE;
    s.sums = (float*)(s.v + B * (WIDEST + 8));
    s.small = s.sums + 2 * WARPS * 16 * B;
    s.given = (bf16*)(s.small + SMALL);
    s.x = (float*)(s.given + GIVEN);
    s.now = (int*)(s.x + B * OWNED);
    s.full = address(s.now + 8), s.empty = s.full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(s.full + 8 * i));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(s.empty + 8 * i), "n"(WARPS));
        }
        for (int i = 0; i < 4; i++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(s.full + 16 * STAGES + 8 * i));
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(s.full + 16 * STAGES + 32 + 8 * i), "n"(WARPS));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (threadIdx.x < B) s.now[threadIdx.x] = (int)state.used[threadIdx.x];
    __syncthreads();
    Ring ring = {0, 0, 0};
    const Given for_qkv(s, 0, QKV_GIVEN, true, QKV, 1), for_out(s, 1, OUT_GIVEN, false, D, 1);
    const Given for_up(s, 2, UP_GIVEN, true, HIDDEN, 2), for_down(s, 3, DOWN_GIVEN, false, D, 1);
    if (threadIdx.x >= CONSUMERS) {
        for (int l = 0; l < LAYERS; l++) {
            const Layer& layer = m.layers[l];
            if (l == 0) ahead(s, state, 0);
            if (l + 1 < LAYERS) ahead(s, state, l + 1);
            send(for_qkv, l, layer.norm1, layer.shift1, layer.qkv_bias, nullptr, QKV, 1);
            stream(s, ring, layer.qkv, nullptr, QKV, D, 1);
            send(for_out, l, nullptr, nullptr, layer.out_bias, nullptr, D, 1);
            stream(s, ring, layer.out, nullptr, D, ATTENDED, 1);
            send(for_up, l, layer.norm2, layer.shift2, layer.up_bias, GATED ? layer.gate_bias : nullptr, HIDDEN, 2);
            stream(s, ring, GATED ? layer.gate : layer.up, GATED ? layer.up : nullptr, HIDDEN, D, 2);
            send(for_down, l, nullptr, nullptr, layer.down_bias, nullptr, D, 1);
            stream(s, ring, layer.down, nullptr, D, HIDDEN, 1);
        }
        send(for_qkv, LAYERS, m.norm, m.shift, nullptr, nullptr, QKV, 1);
        stream(s, ring, m.head, nullptr, VOCAB, D, 1);
        return;
    }
    u64 launches = state.launches[0];
    u32 tag = (u32)launches * 2 * LAYERS + 1;
    Walk rows(D, false, 1);
    for (int i = threadIdx.x; i < B * (rows.end - rows.begin); i += CONSUMERS) {
        int b = i % B, row = rows.begin + i / B;
        s.x[i] = wide(m.embed[state.tokens[b] * D + row]) + (LEARNED ? wide(m.positions[(i64)s.now[b] * D + row]) : 0.f);
    }
    const int splits = splits_of(s);
    const bool attends = blockIdx.x < B * HEADS * splits;
    const Part first(s, blockIdx.x, splits);
    Keys keys;
    if (attends) keys.first(state, first, 0);
    for (int l = 0; l < LAYERS; l++) {
        wait(for_qkv.full, l & 1);
        normalise(s, m, state, l == 0 ? 0 : tag - 1, for_qkv);
        product<false>(s, ring, QKV, D, 1, [&](int b, int row, int place, float sum, float) {
            if (row >= 0) give(state.qkv + b * QKV + row, sum + (QKV_BIAS ? wide(for_qkv.bias[place]) : 0.f), tag);
        });
        done(for_qkv);
        if (attends) attend(s, m, state, tag, l, splits, first, keys);
        join(s, state, tag, splits);
        wait(for_out.full, l & 1);
        product<false>(s, ring, D, ATTENDED, 1, [&](int b, int row, int place, float sum, float) {
            if (row >= 0)
                give(state.x + b * D + row, s.x[place * B + b] += sum + (BIAS ? wide(for_out.bias[place]) : 0.f), tag);
        });
        done(for_out);
        if (attends && l + 1 < LAYERS) keys.first(state, first, l + 1);
        wait(for_up.full, l & 1);
        normalise(s, m, state, tag, for_up);
        product<GATED>(s, ring, HIDDEN, D, 2, [&](int b, int row, int place, float sum, float other) {
            float value = 0;
            if (row >= 0) {
                float up = BIAS ? wide(for_up.bias[place]) : 0.f;
                float gate = GATED && BIAS ? wide(for_up.bias2[place]) : 0.f;
                value = GATED ? activate(sum + gate) * (other + up) : activate(sum + up);
            }
            float after = __shfl_down_sync(~0u, value, 1);
            if (row >= 0 && row % 2 == 0) give(state.hidden + (b * HIDDEN + row) / 2, pack(value, after), tag);
        });
        done(for_up);
        load_hidden(s, state, tag);
        tag++;
        wait(for_down.full, l & 1);
        product<false>(s, ring, D, HIDDEN, 1, [&](int b, int row, int place, float sum, float) {
            if (row >= 0)
                give(state.x + b * D + row, s.x[place * B + b] += sum + (BIAS ? wide(for_down.bias[place]) : 0.f), tag);
        });
        done(for_down);
        tag++;
    }
    wait(for_qkv.full, LAYERS & 1);
    normalise(s, m, state, tag - 1, for_qkv);
    product<false>(s, ring, VOCAB, D, 1, [&](int b, int row, int, float sum, float) {
        if (row >= 0) state.logits[(i64)b * VOCAB + row] = sum + (HEAD_BIAS ? wide(m.head_bias[row]) : 0.f);
    });
    if (blockIdx.x == 0 && threadIdx.x < B) {
        int b = threadIdx.x, now = s.now[b];
        if (b == 0) state.launches[0] = launches + 1;
        if (state.active[b])
            state.index[b * SLOTS + now] = now, state.coords[b * SLOTS + now] = now, state.used[b] = now + 1;
    }
}
