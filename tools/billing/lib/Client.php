<?php
/**
 * The provisioning API of one controller. What it refuses, and what gives no answer, is a Refusal with words for people.
 */

namespace Svc;

final class Refusal extends \RuntimeException
{
    /** @var string A code of the API (conflict, capacity, ...), or `unreachable`. */
    public $reason;

    public function __construct(string $reason, string $message)
    {
        parent::__construct($message);
        $this->reason = $reason;
    }
}

final class Client
{
    private const CONNECT_SECONDS = 10;
    /** Longer than the controller waits for nodes before it answers an order. */
    private const ANSWER_SECONDS = 60;

    private $base;
    private $token;
    private $authority;

    /**
     * @param string $base      https://HOST:PORT
     * @param string $authority PEM of the certificate authority to trust instead of the system's; empty for the system's
     */
    public function __construct(string $base, string $token, string $authority = '')
    {
        $this->base = $base;
        $this->token = $token;
        $this->authority = $authority;
    }

    public function get(string $path, array $query = []): array
    {
        return $this->call('GET', $query ? "$path?" . http_build_query($query) : $path, null);
    }

    public function post(string $path, array $body = []): array
    {
        return $this->call('POST', $path, $body);
    }

    private function call(string $method, string $path, ?array $body): array
    {
        $request = curl_init("{$this->base}/api/v1/provision$path");
        $options = [
            CURLOPT_CUSTOMREQUEST => $method,
            CURLOPT_RETURNTRANSFER => true,
            CURLOPT_CONNECTTIMEOUT => self::CONNECT_SECONDS,
            CURLOPT_TIMEOUT => self::ANSWER_SECONDS,
            CURLOPT_PROTOCOLS => CURLPROTO_HTTPS,
            CURLOPT_HTTPHEADER => [
                "Authorization: Bearer {$this->token}",
                'Accept: application/json',
                'Content-Type: application/json',
            ],
        ];
        if ($body !== null) {
            $options[CURLOPT_POSTFIELDS] = json_encode((object) $body, JSON_THROW_ON_ERROR);
        }
        if ($this->authority !== '') {
            $options[CURLOPT_CAINFO_BLOB] = $this->authority;
        }
        curl_setopt_array($request, $options);
        $answer = curl_exec($request);
        if ($answer === false) {
            throw new Refusal('unreachable', "{$this->base} gave no answer: " . curl_error($request));
        }
        $status = curl_getinfo($request, CURLINFO_RESPONSE_CODE);
        $content = json_decode($answer, true);
        if ($status >= 200 && $status < 300) {
            return is_array($content) ? $content : [];
        }
        $error = $content['error'] ?? ['code' => 'unreachable', 'message' => "{$this->base} answered $status."];
        throw new Refusal($error['code'], trim($error['message'] . ' ' . ($error['hint'] ?? '')));
    }
}
