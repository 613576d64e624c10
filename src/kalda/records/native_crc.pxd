# CRC32C for compiled code that runs without the interpreter's lock: by the processor's instruction where there is one.
# The package crc32c, which all other code uses, is called with the lock.

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    static uint32_t kalda_crc_tables[8][256];

    static void kalda_crc_init(void) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t crc = i;
            for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1)));
            kalda_crc_tables[0][i] = crc;
        }
        for (uint32_t i = 0; i < 256; i++)
            for (int k = 1; k < 8; k++) {
                uint32_t crc = kalda_crc_tables[k - 1][i];
                kalda_crc_tables[k][i] = (crc >> 8) ^ kalda_crc_tables[0][crc & 255];
            }
    }

    static uint32_t kalda_crc_by_table(uint32_t crc, const unsigned char* p, size_t size) {
        for (; size >= 8; p += 8, size -= 8) {
            uint32_t low = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
            crc = kalda_crc_tables[7][low & 255] ^ kalda_crc_tables[6][(low >> 8) & 255]
                ^ kalda_crc_tables[5][(low >> 16) & 255] ^ kalda_crc_tables[4][low >> 24]
                ^ kalda_crc_tables[3][p[4]] ^ kalda_crc_tables[2][p[5]]
                ^ kalda_crc_tables[1][p[6]] ^ kalda_crc_tables[0][p[7]];
        }
        for (; size; size--) crc = (crc >> 8) ^ kalda_crc_tables[0][(crc ^ *p++) & 255];
        return crc;
    }

    #if defined(__x86_64__) && defined(__GNUC__)
    __attribute__((target("sse4.2")))
    static uint32_t kalda_crc_by_instruction(uint32_t start, const unsigned char* p, size_t size) {
        uint64_t crc = start, word;
        for (; size >= 8; p += 8, size -= 8) {
            memcpy(&word, p, 8);
            crc = __builtin_ia32_crc32di(crc, word);
        }
        for (; size; size--) crc = __builtin_ia32_crc32qi((uint32_t)crc, *p++);
        return (uint32_t)crc;
    }
    #define KALDA_HAS_CRC_INSTRUCTION __builtin_cpu_supports("sse4.2")
    #else
    #define kalda_crc_by_instruction kalda_crc_by_table
    #define KALDA_HAS_CRC_INSTRUCTION 0
    #endif

    static unsigned int kalda_crc32c(const unsigned char* p, Py_ssize_t size) {
        uint32_t crc = KALDA_HAS_CRC_INSTRUCTION ? kalda_crc_by_instruction(0xFFFFFFFFu, p, (size_t)size)
                                                 : kalda_crc_by_table(0xFFFFFFFFu, p, (size_t)size);
        return crc ^ 0xFFFFFFFFu;
    }
    """
    # To be called before `kalda_crc32c`.
    void kalda_crc_init() noexcept nogil
    unsigned int kalda_crc32c(const unsigned char* p, Py_ssize_t size) noexcept nogil
